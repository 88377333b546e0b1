package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
)

// entryMessages is a page of the messages that an action on many has changed, in JSON.
type entryMessages struct {
	Entry    auditEntry     `json:"entry"`
	Messages []entryMessage `json:"messages"`
	Next     *int64         `json:"next"` // where to go on with --after; null: there are no more
}

type entryMessage struct {
	Number   int64   `json:"number"`
	At       *string `json:"at"`
	Key      string  `json:"key"`
	Original string  `json:"original,omitempty"`
	Detail   string  `json:"detail"`
}

// auditMessages shows one entry, and the messages that it counts.
func (a *app) auditMessages(ctx context.Context, cmd *cobra.Command, how auditing, arg string) error {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return usagef("%q is not the ID of an entry: millrace audit shows them", arg)
	}
	for _, flag := range []string{"by", "action", "consumer", "epoch", "since", "until", "before"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is for the list of entries, and %d is one of them", flag, id)
		}
	}
	if how.limit < 1 || how.limit > admin.MaxPage {
		return usagef("--limit %d is not between 1 and %d", how.limit, admin.MaxPage)
	}
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	entry, err := admin.New(store).AuditEntry(ctx, id)
	if exitCode(err) == exitNotFound {
		return notFoundf("the audit has no entry %d: millrace audit shows them; is --namespace right?", id)
	}
	if err != nil {
		return err
	}
	if a.flags.output == "csv" {
		return admin.New(store).ExportAuditMessages(ctx, id, a.out)
	}
	page, err := admin.New(store).AuditMessages(ctx, id, how.after, how.limit)
	if err != nil {
		return err
	}
	shown := entryMessages{Entry: auditEntryOf(entry), Messages: []entryMessage{}}
	for _, m := range page {
		shown.Messages = append(shown.Messages, entryMessage{m.Number, since(m.At), jsonKey(m.MessageID), jsonKey(m.Original), m.Detail})
	}
	if len(page) == how.limit && page[len(page)-1].Number < entry.Messages {
		shown.Next = &page[len(page)-1].Number
	}
	return a.print(shown, shown.text)
}

func (p entryMessages) text() string {
	const widest = 100
	text := audited{Entries: []auditEntry{p.Entry}}.text(0)
	if len(p.Messages) > 0 {
		t := newTable("NUMBER", "AT", "KEY", "DETAIL")
		for _, m := range p.Messages {
			t.add(m.Number, *m.At, keyText(keyOf(m.Key)), short(m.Detail, widest))
		}
		text += "\n" + t.String()
	}
	if p.Next != nil {
		text += fmt.Sprintf("There are more: add --after %d.\n", *p.Next)
	}
	return text
}

func (a *app) auditPruneCommand() *cobra.Command {
	var before string
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete old entries of the audit",
		Long: `Deletes the entries before a time, with the messages of actions on many, and adds an entry that says
so. If you stop it, the next call deletes the rest. Without --yes it exits with 2.`,
		Example: "  millrace audit prune --before 2025-01-01 --reason 'kept for a year' --yes\n  millrace audit prune --before 8760h --reason … --yes",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&before, "before", "", "those before a `time`, or so long ago, such as 8760h")
	by := a.confirmed(cmd)
	cmd.RunE = a.doLong(func(ctx context.Context, _ []string) error {
		if before == "" {
			return usagef("before which time? --before 8760h is a year ago")
		}
		until, err := a.instant(ctx, "before", before)
		if err != nil {
			return err
		}
		now, err := a.now(ctx)
		switch {
		case err != nil:
			return err
		case until.After(now):
			return usagef("--before %s lies in the future: give a time that is past, such as 8760h, a year ago", before)
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		if missing := by.missing(); missing != "" {
			shown := a.print(map[string]any{"would": "prune", "before": stamp(until)}, func() string {
				return fmt.Sprintf("The entries before %s would be deleted.\n", stamp(until))
			})
			a.unchanged("deleted", missing)
			return errors.Join(shown, &silent{exitUsage})
		}
		operator, err := by.operator()
		if err != nil {
			return err
		}
		n, err := admin.New(store).PruneAudit(ctx, admin.ConsumerFilter{}, until, operator)
		shown := a.print(map[string]any{"done": "prune", "entries": n}, func() string {
			if n == 1 {
				return "1 entry deleted\n"
			}
			return fmt.Sprintf("%d entries deleted\n", n)
		})
		return errors.Join(err, shown)
	})
	return cmd
}

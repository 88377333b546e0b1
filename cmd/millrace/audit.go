package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
)

// auditing holds the flags of audit.
type auditing struct {
	by, action, consumer string
	epoch                int
	since, until         string
	limit                int
	before, after        int64
}

func (a *app) auditCommand() *cobra.Command {
	var how auditing
	cmd := &cobra.Command{
		Use:   "audit [ENTRY]",
		Short: "What operators did, when and why",
		Long: `Lists the decisions of operators, the newest first: of an operator, about a consumer, of a time. Those
about the outbox have no consumer. Operators and times have no index: after 100,000 entries that
do not match, audit stops and says how to continue; in JSON, "next" is then not null.

A retry or discard with --all-matching, and a redispatch without keys, has one entry for each consumer,
or one for the outbox, with the number of messages and the filter; with the ID of the entry, audit
lists the messages. -o csv writes all that matches.`,
		Example: `  millrace audit
  millrace audit --by ada@laptop --since 12h
  millrace audit --consumer billing --action pause --json
  millrace audit 812
  millrace audit --since 720h -o csv > november.csv
  millrace audit prune --before 8760h --reason 'older than a year' --yes`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&how.by, "by", "", "of this `operator`")
	flags.StringVar(&how.action, "action", "", "this `action`, such as retry, discard or pause")
	flags.StringVar(&how.consumer, "consumer", "", "about this `consumer`")
	flags.IntVar(&how.epoch, "epoch", 0, "about this `epoch`; all unless given")
	flags.StringVar(&how.since, "since", "", "since a `time`, or so long ago, such as 12h")
	flags.StringVar(&how.until, "until", "", "before a `time`, or so long ago")
	flags.IntVar(&how.limit, "limit", 50, fmt.Sprintf("at most so many `entries`, up to %d", admin.MaxPage))
	flags.Int64Var(&how.before, "before", 0, "those before the one with this `id`")
	flags.Int64Var(&how.after, "after", 0, "of an entry, the messages after this `number`")
	a.completeConsumer(cmd)
	cmd.AddCommand(a.auditPruneCommand())
	do := func(ctx context.Context, args []string) error {
		if err := notEmpty(cmd, "by"); err != nil {
			return err
		}
		for _, flag := range []string{"limit", "before", "after"} {
			if a.flags.output == "csv" && cmd.Flags().Changed(flag) {
				return usagef("-o csv writes all that matches: leave out --%s, which is for pages", flag)
			}
		}
		if len(args) == 1 {
			return a.auditMessages(ctx, cmd, how, args[0])
		}
		f := admin.Filter{Consumer: how.consumer}
		if cmd.Flags().Changed("epoch") {
			f.Epoch = &how.epoch
		}
		return a.audit(ctx, how, f)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if a.flags.output == "csv" { // of one database, all of it
			return a.doLong(do)(cmd, args)
		}
		return a.doEach(do)(cmd, args)
	}
	return cmd
}

func (a *app) audit(ctx context.Context, how auditing, of admin.Filter) error {
	since, err := a.instant(ctx, "since", how.since)
	if err != nil {
		return err
	}
	until, err := a.instant(ctx, "until", how.until)
	if err != nil {
		return err
	}
	if how.limit < 1 || how.limit > admin.MaxPage {
		return usagef("--limit %d is not between 1 and %d", how.limit, admin.MaxPage)
	}
	if how.after != 0 {
		return usagef("--after goes with the ID of an entry; for earlier entries there is --before")
	}
	if of.Epoch != nil && of.Consumer == "" {
		return usagef("--epoch goes with --consumer")
	}
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	consumer := admin.ConsumerFilter{Consumer: of.Consumer, Epoch: of.Epoch}
	about, err := admin.New(store).Audit(ctx, consumer, 0, 1)
	if err == nil && len(about) == 0 { // a consumer of leases is known by its entries alone
		err = a.mustKnow(ctx, store, of)
	}
	if err != nil {
		return err
	}
	filter := admin.AuditFilter{
		ConsumerFilter: consumer,
		Operator:       how.by, Action: how.action, Since: since, Until: until,
	}
	if a.flags.output == "csv" {
		return admin.New(store).ExportAudit(ctx, filter, a.out)
	}
	page, err := admin.New(store).SearchAudit(ctx, filter, how.before, how.limit, lookAt)
	if err != nil {
		return err
	}
	shown := audited{Entries: []auditEntry{}}
	for _, e := range page.Entries {
		shown.Entries = append(shown.Entries, auditEntryOf(e))
	}
	if page.Next > 0 {
		shown.Next = &page.Next
	}
	return a.print(shown, func() string { return shown.text(how.limit) })
}

// audited is a page of the audit log in JSON.
type audited struct {
	Entries []auditEntry `json:"entries"`
	Next    *int64       `json:"next"` // where to go on with --before; null: there are no more
}

type auditEntry struct {
	ID       int64   `json:"id"`
	At       *string `json:"at"`
	By       string  `json:"by"`
	Reason   string  `json:"reason"`
	Action   string  `json:"action"`
	Consumer string  `json:"consumer,omitempty"`
	Epoch    int     `json:"epoch"`
	Key      string  `json:"key,omitempty"`
	Detail   string  `json:"detail"`
	Messages int64   `json:"messages,omitempty"` // of an action on many
}

func auditEntryOf(e admin.AuditEntry) auditEntry {
	return auditEntry{e.ID, since(e.At), e.Operator.Name, e.Operator.Reason, e.Action, e.Consumer, e.Epoch, jsonKey(e.MessageID), e.Detail, e.Messages}
}

func (p audited) text(limit int) string {
	const widest = 60
	text := "Nobody did anything that matches.\n"
	if len(p.Entries) > 0 {
		t := newTable("ID", "AT", "BY", "ACTION", "CONSUMER", "EPOCH", "KEY", "REASON", "DETAIL")
		for _, e := range p.Entries {
			key := "-"
			if e.Key != "" {
				key = keyText(keyOf(e.Key))
			}
			if e.Messages > 0 {
				key = messagesIn(admin.Count{N: int(e.Messages)})
			}
			t.add(e.ID, *e.At, e.By, e.Action, orDash(e.Consumer), e.Epoch, key, orDash(short(e.Reason, widest)), orDash(short(e.Detail, widest)))
		}
		text = t.String()
	}
	switch {
	case p.Next == nil:
		return text
	case len(p.Entries) == limit:
		return text + fmt.Sprintf("There may be more: add --before %d.\n", *p.Next)
	}
	return text + fmt.Sprintf("%d entries were read; to go on from there, add --before %d.\n", lookAt, *p.Next)
}

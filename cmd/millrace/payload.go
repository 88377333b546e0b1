package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// replacing is one call of payload replace.
type replacing struct {
	*app
	cmd   *cobra.Command
	by    *operators
	file  string
	empty bool
}

func (a *app) payloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "payload",
		Short:   "Correct the payload of a stuck message",
		Long:    "Corrects the payload of a message that is parked or failed.",
		Example: payloadExamples,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.payloadReplaceCommand())
	return cmd
}

const payloadExamples = "  millrace payload replace 1207 --file corrected.json --reason 'the account has its currency now' --yes\n" +
	"  jq '.currency = \"EUR\"' broken.json | millrace payload replace 1207 --file - --reason … --yes"

func (a *app) payloadReplaceCommand() *cobra.Command {
	r := &replacing{app: a}
	cmd := &cobra.Command{
		Use:   "replace ID",
		Short: "Replace the payload of a message that is parked or failed",
		Long: `Replaces the payload of the message of this row, which must be parked or failed, by the bytes of a
file. millrace retry then has it handled. The audit table keeps the hashes of both payloads; nothing
keeps the old payload, so save it first: millrace list --payload. A copy with the old payload that
comes later is a collision, and so is one with the new payload if the consumer has a Fingerprint. The
command has no Config.Payloads, and refuses a message whose payload is encrypted: use
Admin.ReplacePayload in the service.

It prints no payload. Without --yes it shows what it would do, and exits with 2.`,
		Example: payloadExamples,
		Args:    cobra.ExactArgs(1),
	}
	r.cmd, r.by = cmd, a.confirmed(cmd)
	cmd.Flags().StringVar(&r.file, "file", "", "the `file` with the new payload; - is standard input")
	cmd.Flags().BoolVar(&r.empty, "empty", false, "the new payload may be empty")
	cmd.RunE = a.do(r.run)
	return cmd
}

func (r *replacing) run(ctx context.Context, args []string) error {
	id, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return usagef("%q is not a row id: millrace list shows them", args[0])
	}
	payload, err := r.read()
	if err != nil {
		return err
	}
	store, err := r.storeWith(ctx, tuned, inbox.Config{AllowPayloadChange: true})
	if err != nil {
		return err
	}
	m, err := r.row(ctx, store, id)
	if err != nil {
		return err
	}
	now, err := r.now(ctx)
	if err == nil {
		err = mayCorrect(ctx, store, m)
	}
	if err != nil {
		return err
	}
	facts := map[string]any{"id": m.ID, "consumer": m.Consumer, "epoch": m.Epoch, "key": jsonKey(m.MessageID), "bytes": len(payload)}
	if missing := r.by.missing(); missing != "" {
		if !m.Status.Retryable() {
			return moved("row %d is %s, and only messages that are parked or failed can be corrected", id, m.Status)
		}
		facts["would"] = "replace payload"
		shown := r.print(facts, func() string {
			return fmt.Sprintf("The payload of this message would be replaced by %d bytes, and the old one is gone then:\n\n%s",
				len(payload), messagesTable(now, []admin.Message{m}, false))
		})
		r.unchanged("changed", missing)
		return errors.Join(shown, &silent{exitUsage})
	}
	operator, err := r.by.operator()
	if err == nil {
		err = admin.New(store).ReplacePayload(ctx, id, payload, operator)
	}
	if err != nil {
		return err
	}
	facts["done"] = "replace payload"
	return r.print(facts, func() string {
		return fmt.Sprintf("the payload of row %d has %d bytes now: millrace %sretry %d has it handled\n", id, len(payload), r.where(), id)
	})
}

// mayCorrect refuses a message whose key is that of another, which was handled (inbox.CollisionFail).
func mayCorrect(ctx context.Context, store *inbox.Store, m admin.Message) error {
	story, err := admin.New(store).Outline(ctx, m.MessageID)
	for _, c := range story.Claims {
		if c.Consumer == m.Consumer && c.Epoch == m.Epoch && c.Completed && m.Status.Retryable() {
			return moved("row %d cannot be corrected: its key belongs to a message that was handled: discard it", m.ID)
		}
	}
	return err
}

// read returns the new payload.
func (r *replacing) read() (payload []byte, err error) {
	from := r.cmd.InOrStdin()
	switch {
	case r.file == "":
		return nil, usagef("which payload? name its file with --file; - is standard input")
	case r.file != "-":
		file, err := os.Open(r.file)
		if err != nil {
			return nil, usagef("--file: %w", err)
		}
		defer file.Close() //nolint:errcheck // it was only read
		from = file
	case isTerminal(from):
		return nil, usagef("--file - reads standard input, which is a terminal: name a file")
	}
	payload, err = io.ReadAll(io.LimitReader(from, admin.MaxPayload+1))
	switch {
	case err != nil:
		return nil, usagef("--file: %w", err)
	case len(payload) > admin.MaxPayload:
		return nil, usagef("--file: it has more than %d bytes", admin.MaxPayload)
	case len(payload) == 0 && !r.empty:
		return nil, usagef("--file: it is empty: add --empty if the payload is to be empty")
	}
	return payload, nil
}

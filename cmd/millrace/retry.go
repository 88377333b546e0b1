package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

func (a *app) retryCommand() *cobra.Command {
	act := &action{app: a, name: "retry", done: "to be handled now", doing: "would be handled again"}
	cmd := &cobra.Command{
		Use:   "retry [ID|KEY]...",
		Short: "Have messages handled again that are parked or failed",
		Long: `Has messages handled again: those with these row ids, those with these keys if
--consumer is given, or all that the filter matches with --all-matching, which are
parked or failed terminally unless --status says otherwise. Their attempts start anew.

Where a queue (pubsub.Durable) serves the consumer it delivers them. Elsewhere
--through-outbox stores them in the outbox, and a relay sends each to its topic again.

Without --yes it shows what it would do, and exits with 2.`,
		Example: `  millrace retry 1207 1208 --reason 'the bank is back' --yes
  millrace retry 0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de --consumer billing --reason … --yes
  millrace retry --all-matching --group 3411 --rate 100 --reason … --yes
  millrace retry 1207 --through-outbox --reason … --yes`,
	}
	through := cmd.Flags().Bool("through-outbox", false, "send to its topic what no queue serves")
	act.one = func(ctx context.Context, s *inbox.Store, id int64, by admin.Operator) error {
		to, err := act.target(ctx, *through)
		if err != nil {
			return err
		}
		return admin.New(s).Retry(ctx, id, by, to)
	}
	act.all = func(ctx context.Context, s *inbox.Store, f admin.Filter, by admin.Operator, pace admin.Pace) (int, error) {
		to, err := act.target(ctx, *through)
		if err != nil {
			return 0, err
		}
		return admin.New(s).RetryAll(ctx, f, by, to, pace)
	}
	act.needsQueue = func() bool { return !*through }
	act.allows = admin.Status.Retryable
	return act.command(cmd)
}

func (a *app) discardCommand() *cobra.Command {
	act := &action{app: a, name: "discard", done: "discarded", doing: "would be discarded for good"}
	cmd := &cobra.Command{
		Use:   "discard [ID|KEY]...",
		Short: "Close messages for good that are parked or failed",
		Long: `Closes messages for good: they count as handled, and no delivery of them runs the
handler. Name them as for retry; with --status failed_retryable it takes those that are
still tried. Without --yes it shows what it would do, and exits with 2.`,
		Example: `  millrace discard 1207 --reason 'a test message' --yes
  millrace discard --all-matching --consumer billing --group 3411 --reason … --yes`,
	}
	act.one = func(ctx context.Context, s *inbox.Store, id int64, by admin.Operator) error {
		return admin.New(s).Discard(ctx, id, by)
	}
	act.all = func(ctx context.Context, s *inbox.Store, f admin.Filter, by admin.Operator, pace admin.Pace) (int, error) {
		return admin.New(s).DiscardAll(ctx, f, by, pace)
	}
	act.needsQueue = func() bool { return false }
	act.allows = admin.Status.Retryable
	return act.command(cmd)
}

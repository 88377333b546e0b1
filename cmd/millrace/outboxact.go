package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
)

// outboxAction is an operation on parked messages of the outbox.
type outboxAction struct {
	*app
	name, doing, done string

	one func(*outbox.Publisher, context.Context, int64, outbox.Operator) error
	all func(*outbox.Publisher, context.Context, string, outbox.Operator, func(int)) (int, error)

	by       *operators
	topic    string
	matching bool
	rate     int
}

func (a *app) outboxRetryCommand() *cobra.Command {
	act := &outboxAction{
		app: a, name: "retry", doing: "would be tried again", done: "to be tried again",
		one: (*outbox.Publisher).Retry, all: (*outbox.Publisher).RetryAll,
	}
	return act.command("Have relays try parked messages again", "  millrace outbox retry 17 18 --reason 'the exchange is there now' --yes\n"+
		"  millrace outbox retry --all-matching --topic invoices --reason … --yes")
}

func (a *app) outboxDiscardCommand() *cobra.Command {
	act := &outboxAction{
		app: a, name: "discard", doing: "would be deleted", done: "deleted",
		one: (*outbox.Publisher).Discard, all: (*outbox.Publisher).DiscardAll,
	}
	return act.command("Delete parked messages; what waits behind them is sent", "  millrace outbox discard 17 --reason 'nobody wants it' --yes")
}

func (act *outboxAction) command(what, examples string) *cobra.Command {
	cmd := &cobra.Command{
		Use: act.name + " [ID]...", Short: what, Example: examples,
		Long: what + ": those with these ids, or all that are parked (on the way to --topic) with\n--all-matching. Without --yes it shows what it would do, and exits with 2.",
	}
	act.by = act.confirmed(cmd)
	cmd.Flags().BoolVar(&act.matching, "all-matching", false, "all that are parked")
	cmd.Flags().StringVar(&act.topic, "topic", "", "with --all-matching, only to this `topic`")
	cmd.Flags().IntVar(&act.rate, "rate", 1000, "at most so many `messages` a second")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run := act.do
		if act.matching {
			run = act.doLong
		}
		return run(act.run)(cmd, args)
	}
	return cmd
}

func (act *outboxAction) run(ctx context.Context, args []string) error {
	ids, err := act.understand(args)
	if err != nil {
		return err
	}
	out, err := act.publisher(ctx)
	if err != nil {
		return err
	}
	messages, err := act.choose(ctx, out, ids)
	if err != nil {
		return err
	}
	if missing := act.by.missing(); missing != "" {
		return act.propose(messages, missing)
	}
	return act.carryOut(ctx, out, messages)
}

func (act *outboxAction) understand(args []string) (ids []int64, err error) {
	switch {
	case act.matching && len(args) > 0:
		return nil, usagef("--all-matching takes all that are parked: leave %q out, or the flag", args[0])
	case !act.matching && len(args) == 0:
		return nil, usagef("which messages? give ids (see millrace outbox list), or --all-matching")
	case !act.matching && act.topic != "":
		return nil, usagef("--topic goes with --all-matching")
	case act.rate < 1:
		return nil, usagef("--rate %d is less than 1", act.rate)
	}
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return nil, usagef("%q is not an id: millrace outbox list shows them", arg)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// choose returns the parked messages that the call names.
func (act *outboxAction) choose(ctx context.Context, out *outbox.Publisher, ids []int64) ([]outbox.Parked, error) {
	if act.matching {
		return act.chooseAll(ctx, out)
	}
	var all []outbox.Parked
	for _, id := range ids {
		found, err := out.FindParked(ctx, id)
		if errors.Is(err, outbox.ErrNotFound) {
			err = notFoundf("the outbox has no message with the id %d: millrace outbox list shows those that are parked", id)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	return all, nil
}

func (act *outboxAction) chooseAll(ctx context.Context, out *outbox.Publisher) (all []outbox.Parked, err error) {
	for p, err := range parkedTo(ctx, out.ListParked, mostParked, act.topic, 0) {
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, notFoundf("no message of the outbox that matches is parked")
	}
	return all, nil
}

func (act *outboxAction) propose(messages []outbox.Parked, missing string) error {
	few := []parkedMessage{}
	topics := map[string]int{}
	for i, p := range messages {
		topics[p.Topic]++
		if i < firstFew {
			few = append(few, parkedMessageOf(p))
		}
	}
	shown := act.print(map[string]any{"would": act.name, "messages": len(messages), "topics": topics, "first": few}, func() string {
		text := fmt.Sprintf("%s %s:\n\n%s", messagesIn(admin.Count{N: len(messages)}), act.doing, parkedTable(few))
		if len(messages) > len(few) {
			text += fmt.Sprintf("and %d more\n", len(messages)-len(few))
		}
		return text
	})
	act.unchanged("changed", missing)
	return errors.Join(shown, &silent{exitUsage})
}

// carryOut skips messages that somebody else changed first, unless the call names them.
func (act *outboxAction) carryOut(ctx context.Context, out *outbox.Publisher, messages []outbox.Parked) error {
	operator, err := act.by.operator()
	if err != nil {
		return err
	}
	bar, done := act.progress(act.name, admin.Count{N: len(messages)}), 0
	if act.matching {
		pause := time.NewTicker(max(time.Second/time.Duration(act.rate), 1))
		defer pause.Stop()
		done, err = act.all(out, ctx, act.topic, outbox.Operator(operator), func(done int) {
			bar.at(done)
			<-pause.C
		})
		messages = nil
	}
	for _, m := range messages {
		if err = act.one(out, ctx, m.ID, outbox.Operator(operator)); err != nil {
			break
		}
		done++
		bar.at(done)
	}
	bar.end()
	what := fmt.Sprintf("%s %s", messagesIn(admin.Count{N: done}), act.done)
	shown := act.print(map[string]any{"messages": done, "done": act.name}, func() string { return what + "\n" })
	return errors.Join(partly(done, what, err), shown)
}

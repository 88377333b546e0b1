package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/outbox"
)

// redispatching is one call of redispatch.
type redispatching struct {
	*app
	cmd      *cobra.Command
	by       *operators
	consumer string
	epoch    int
	age      time.Duration
	limit    int
}

func (a *app) redispatchCommand() *cobra.Command {
	r := &redispatching{app: a}
	cmd := &cobra.Command{
		Use:   "redispatch [KEY]...",
		Short: "Send what handlers returned and the broker may lack",
		Long: `Stores in the outbox what handlers returned in committed runs and nobody knows to be published, with
the same UUIDs, and a relay sends it: the outcomes of the messages with these keys, or all that were
stored longer ago than --age. If the source delivers a message again at the same time, the broker may
get its outcome twice: choose an --age above the time after which the source redelivers.

Where publishing itself fails, mend that first. A service that has no relay sends its outcomes itself,
with Config.Redispatch. The command has no Config.Payloads, so it names outcomes with encrypted payloads
and leaves them.

Without --yes it shows what it would do, and exits with 2. If an outcome could not be sent it exits with 1.`,
		Example: `  millrace redispatch --consumer mail
  millrace redispatch 0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de --reason 'its process died' --yes
  millrace redispatch --age 1h --reason 'the broker was down' --yes`,
	}
	r.cmd, r.by = cmd, a.confirmed(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.consumer, "consumer", "", "of this `consumer`")
	flags.IntVar(&r.epoch, "epoch", 0, "of this `epoch`; all unless given")
	flags.DurationVar(&r.age, "age", 15*time.Minute, "stored longer ago than this")
	flags.IntVar(&r.limit, "limit", admin.MaxPage, fmt.Sprintf("at most so many `outcomes`, the oldest, up to %d", admin.MaxPage))
	a.completeConsumer(cmd)
	cmd.RunE = a.doLong(r.run)
	return cmd
}

func (r *redispatching) run(ctx context.Context, args []string) error {
	switch {
	case r.limit < 1 || r.limit > admin.MaxPage:
		return usagef("--limit %d is not between 1 and %d", r.limit, admin.MaxPage)
	case r.age < 0:
		return usagef("--age %v is negative", r.age)
	case r.cmd.Flags().Changed("epoch") && r.consumer == "":
		return usagef("--epoch goes with --consumer")
	}
	store, err := r.store(ctx)
	if err != nil {
		return err
	}
	f := admin.Filter{Consumer: r.consumer}
	if r.cmd.Flags().Changed("epoch") {
		f.Epoch = &r.epoch
	}
	if err := r.mustKnow(ctx, store, f); err != nil {
		return err
	}
	of := admin.ConsumerFilter{Consumer: f.Consumer, Epoch: f.Epoch}
	found, unreadable, err := r.find(ctx, store, of, args)
	if err != nil {
		return err
	}
	out, err := r.publisher(ctx)
	if err != nil {
		return err
	}
	if missing := r.by.missing(); missing != "" {
		return r.propose(ctx, out, found, len(args) == 0 && len(found) == r.limit, unreadable, missing)
	}
	if len(args) == 0 {
		return r.carryOutAll(ctx, store, out, of, len(found))
	}
	return r.carryOut(ctx, store, out, found, unreadable)
}

// find returns the outcomes that the call names, and an error about those that cannot be read.
func (r *redispatching) find(
	ctx context.Context, store *inbox.Store, f admin.ConsumerFilter, keys []string,
) (found []admin.UnsettledOutcome, unreadable, err error) {
	if len(keys) > 0 {
		return r.named(ctx, admin.New(store), f, keys)
	}
	found, unreadable = r.old(ctx, store, f)
	switch {
	case unavailable(unreadable), errors.Is(unreadable, inbox.ErrNotMigrated), unreadable != nil && (ctx.Err() != nil || len(found) == 0):
		return nil, nil, unreadable
	case len(found) == 0:
		return nil, nil, notFoundf("no outcome was stored longer ago than %v: what handlers returned is published", r.age)
	}
	return found, unreadable, nil
}

// old returns all outcomes that the call takes without their payloads: together they may not fit into memory.
func (r *redispatching) old(ctx context.Context, store *inbox.Store, f admin.ConsumerFilter) (found []admin.UnsettledOutcome, unreadable error) {
	of := stored.UnsettledFilter{Consumer: f.Consumer, Epoch: f.Epoch, Age: r.age}
	unreadable = store.Internals().EachUnsettled(ctx, of, r.limit, func(o stored.Unsettled) (stays bool, err error) {
		for _, m := range o.Messages {
			m.Payload = nil
		}
		found = append(found, admin.UnsettledOutcome{
			Consumer: o.Consumer, Epoch: o.Epoch, MessageID: o.MessageID, Topic: o.Topic, Messages: o.Messages, StoredAt: o.StoredAt, Age: o.Age,
		})
		return true, nil
	})
	return found, unreadable
}

// named returns the outcomes of the messages with these keys, however many others are older.
func (r *redispatching) named(
	ctx context.Context, ops *admin.Admin, f admin.ConsumerFilter, keys []string,
) (found []admin.UnsettledOutcome, unreadable, err error) {
	consumers, err := ops.Consumers(ctx)
	if err != nil {
		return nil, nil, err
	}
	consumers = slices.DeleteFunc(consumers, func(c admin.KnownConsumer) bool {
		return f.Consumer != "" && c.Name != f.Consumer || f.Epoch != nil && c.Epoch != *f.Epoch
	})
	for i, arg := range keys {
		if slices.Contains(keys[:i], arg) {
			continue // it is named twice
		}
		settled := true
		for _, c := range consumers {
			o, err := ops.Outcome(ctx, c.Name, c.Epoch, keyOf(arg))
			switch unknown := err != nil && o.StoredAt.IsZero(); {
			case unknown && !errors.Is(err, inbox.ErrNotFound):
				return nil, nil, err
			case unknown, o.Age < r.age:
				continue
			case err != nil:
				unreadable = errors.Join(unreadable, err)
			default:
				found = append(found, o)
			}
			settled = false
		}
		if settled {
			return nil, nil, errors.Join(unreadable, notFoundf("no outcome of message %s was stored longer ago than %v: "+
				"it is settled, or give a shorter --age", keyText(keyOf(arg)), r.age))
		}
	}
	if len(found) == 0 {
		return nil, nil, unreadable
	}
	return found, unreadable, nil
}

// outcome is an outcome in JSON, without payloads.
type outcome struct {
	Consumer string   `json:"consumer"`
	Epoch    int      `json:"epoch"`
	Key      string   `json:"key"`
	Topic    string   `json:"topic"`
	UUIDs    []string `json:"uuids"`
	Stored   *string  `json:"stored_at"`
}

func (r *redispatching) propose(
	ctx context.Context, out *outbox.Publisher, found []admin.UnsettledOutcome, more bool, unreadable error, missing string,
) error {
	layout, err := out.Shards(ctx)
	if err != nil {
		return err
	}
	relay := slices.ContainsFunc(layout.Relays, func(l outbox.RelayLease) bool { return l.Alive })
	few, messages := []outcome{}, 0
	for i, o := range found {
		messages += len(o.Messages)
		if i < firstFew {
			few = append(few, outcomeOf(o))
		}
	}
	shown := r.print(map[string]any{
		"would": "redispatch", "outcomes": len(found), "messages": messages, "relay": relay, "first": few, "more": more,
	}, func() string { return outcomesText(found, messages, more) })
	if unreadable != nil {
		r.notef("Left alone, since they cannot be read: %s\n", spoken(unreadable))
	}
	if !relay {
		r.notef("No relay runs now: what is stored in the outbox waits for one.\n")
	}
	r.unchanged("changed", missing)
	return errors.Join(shown, &silent{exitUsage})
}

func outcomeOf(o admin.UnsettledOutcome) outcome {
	uuids := []string{}
	for _, m := range o.Messages {
		uuids = append(uuids, m.UUID)
	}
	return outcome{o.Consumer, o.Epoch, jsonKey(o.MessageID), o.Topic, uuids, since(o.StoredAt)}
}

func outcomesText(found []admin.UnsettledOutcome, messages int, limited bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s would be stored in the outbox, and a relay sends them:\n\n", returnedBy(messages, len(found)))
	t := newTable("CONSUMER", "EPOCH", "KEY", "TOPIC", "MESSAGES", "STORED")
	for _, o := range found[:min(len(found), firstFew)] {
		t.add(o.Consumer, o.Epoch, keyText(o.MessageID), o.Topic, len(o.Messages), stamp(o.StoredAt))
	}
	b.WriteString(t.String())
	if more := len(found) - firstFew; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	if limited {
		b.WriteString("There may be more, which another call takes.\n")
	}
	return b.String()
}

// returnedBy says how many messages as many runs of handlers returned.
func returnedBy(messages, outcomes int) string {
	runs := "1 outcome"
	if outcomes != 1 {
		runs = fmt.Sprintf("%d outcomes", outcomes)
	}
	return messagesIn(admin.Count{N: messages}) + " of " + runs
}

func storedBy(messages, outcomes int) string {
	return returnedBy(messages, outcomes) + " stored in the outbox"
}

// carryOut skips outcomes that somebody else settled first. One that fails stops no other.
func (r *redispatching) carryOut(
	ctx context.Context, store *inbox.Store, out *outbox.Publisher, found []admin.UnsettledOutcome, failures error,
) error {
	operator, err := r.by.operator()
	if err != nil {
		return err
	}
	bar, done, messages := r.progress("redispatch", admin.Count{N: len(found)}), 0, 0
	for _, o := range found {
		if err := ctx.Err(); err != nil {
			failures = errors.Join(failures, err)
			break
		}
		err := admin.New(store).Redispatch(ctx, o, operator, out)
		switch {
		case errors.Is(err, inbox.ErrNotFound):
		case err != nil:
			failures = errors.Join(failures, err)
		default:
			done++
			messages += len(o.Messages)
			bar.at(done)
		}
		if unavailable(err) {
			break
		}
	}
	bar.end()
	return errors.Join(partly(done, storedBy(messages, done), failures), r.printDone(done, messages, false))
}

// carryOutAll takes all outcomes that the call matches, about so many.
func (r *redispatching) carryOutAll(ctx context.Context, store *inbox.Store, out *outbox.Publisher, of admin.ConsumerFilter, total int) error {
	operator, err := r.by.operator()
	if err != nil {
		return err
	}
	bar := r.progress("redispatch", admin.Count{N: total})
	done, messages, err := admin.New(store).RedispatchAll(ctx, of, r.age, r.limit, operator, out, admin.Pace{Progress: bar.at})
	bar.end()
	return errors.Join(partly(done, storedBy(messages, done), err), r.printDone(done, messages, total == r.limit))
}

func (r *redispatching) printDone(outcomes, messages int, more bool) error {
	return r.print(map[string]any{"done": "redispatch", "outcomes": outcomes, "messages": messages, "more": more}, func() string {
		text := storedBy(messages, outcomes) + "\n"
		if more {
			text += "There may be more: call it again.\n"
		}
		return text
	})
}

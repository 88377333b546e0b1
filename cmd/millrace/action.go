package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
)

// action is an operation on open messages.
type action struct {
	*app
	name  string // of the command
	doing string // what would happen to a message
	done  string // what happened to it

	one        func(context.Context, *inbox.Store, int64, admin.Operator) error
	all        func(context.Context, *inbox.Store, admin.Filter, admin.Operator, admin.Pace) (int, error)
	needsQueue func() bool
	allows     func(admin.Status) bool

	selected *selection
	ids      []int64
	by       *operators
	matching bool
	rate     int
}

func (act *action) command(cmd *cobra.Command) *cobra.Command {
	act.selected = act.selects(cmd)
	act.by = act.confirmed(cmd)
	cmd.Flags().Int64SliceVar(&act.ids, "id", nil, "the messages of these `rows`, see millrace list")
	cmd.Flags().BoolVar(&act.matching, "all-matching", false, "all that the filter matches")
	cmd.Flags().IntVar(&act.rate, "rate", 1000, "with --all-matching, at most so many `messages` a second")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run := act.do
		if act.matching {
			run = act.doLong
		}
		return run(act.run)(cmd, args)
	}
	return cmd
}

// plan lists the messages that an action would change.
type plan struct {
	filter   admin.Filter    // with --all-matching
	messages []admin.Message // all named ones, or the first that match
	takes    []admin.Preview
	total    admin.Count
	now      time.Time // by the database's clock
}

// firstFew is how many of the matching messages are shown.
const firstFew = 5

func (act *action) run(ctx context.Context, args []string) error {
	if err := act.understand(args); err != nil {
		return err
	}
	f, err := act.selected.filter(ctx)
	if err != nil {
		return err
	}
	if f.Status != 0 && !act.allows(f.Status) {
		return usagef("--status %s: millrace %s takes %s", act.selected.status, act.name, strings.Join(namesOf(act.allows), ", "))
	}
	store, err := act.store(ctx)
	if err != nil {
		return err
	}
	if err := act.mustKnow(ctx, store, f); err != nil {
		return err
	}
	var p *plan
	if act.matching {
		p, err = act.planMatching(ctx, store, f)
	} else {
		p, err = act.planNamed(ctx, store, args)
	}
	if err == nil {
		p.now, err = act.now(ctx)
	}
	if err != nil {
		return err
	}
	if missing := act.by.missing(); missing != "" {
		return act.propose(p, missing)
	}
	return act.carryOut(ctx, store, p)
}

// understand refuses an ambiguous call.
func (act *action) understand(args []string) error {
	switch {
	case act.matching && len(args) > 0:
		return usagef("--all-matching takes what the filter matches: leave %q out, or the flag", args[0])
	case act.matching && len(act.ids) > 0:
		return usagef("--all-matching takes what the filter matches: leave --id out, or the flag")
	case !act.matching && len(args) == 0 && len(act.ids) == 0:
		return usagef("which messages? give row ids (see millrace list), keys with --consumer, or a filter with --all-matching")
	case act.rate < 1:
		return usagef("--rate %d is less than 1", act.rate)
	}
	for _, flag := range []string{"status", "topic", "group", "since", "until"} {
		if !act.matching && act.selected.cmd.Flags().Changed(flag) {
			return usagef("--%s goes with --all-matching: a message that is named needs no filter", flag)
		}
	}
	if act.selected.consumer == "" {
		for _, arg := range args {
			if _, err := strconv.ParseInt(arg, 10, 64); err != nil {
				return usagef("%q is not a row id: to name a message by its key, add --consumer", arg)
			}
		}
	}
	return nil
}

func (act *action) planMatching(ctx context.Context, store *inbox.Store, f admin.Filter) (*plan, error) {
	takes, err := admin.New(store).Preview(ctx, f, math.MaxInt)
	if err != nil {
		return nil, err
	}
	p := &plan{filter: f, takes: takes}
	for _, t := range takes {
		p.total.N += t.Messages.N
		p.total.AtLeast = p.total.AtLeast || t.Messages.AtLeast
	}
	if p.total.N == 0 {
		return nil, notFoundf("no message matches: millrace list shows what is open")
	}
	states := []admin.Status{f.Status}
	if f.Status == 0 {
		states = []admin.Status{admin.FailedTerminal, admin.Parked}
	}
	for _, state := range states {
		f.Status = state
		few, err := admin.New(store).Find(ctx, f, 0, firstFew)
		if err != nil {
			return nil, err
		}
		p.messages = append(p.messages, few...)
	}
	p.messages = p.messages[:min(len(p.messages), firstFew)]
	return p, nil
}

func (act *action) planNamed(ctx context.Context, store *inbox.Store, args []string) (*plan, error) {
	served, err := servedConsumers(ctx, store)
	if err != nil {
		return nil, err
	}
	p := &plan{}
	add := func(m admin.Message) {
		if slices.ContainsFunc(p.messages, func(named admin.Message) bool { return named.ID == m.ID }) {
			return // it is named twice
		}
		p.messages = append(p.messages, m)
		p.total.N++
		p.take(m, served)
	}
	for _, id := range act.ids {
		m, err := act.row(ctx, store, id)
		if err != nil {
			return nil, err
		}
		add(m)
	}
	for _, arg := range args {
		m, err := act.named(ctx, store, arg)
		if err != nil {
			return nil, err
		}
		add(m)
	}
	return p, nil
}

// named returns the message with a row id or a key.
func (act *action) named(ctx context.Context, store *inbox.Store, arg string) (admin.Message, error) {
	if act.selected.consumer == "" {
		id, _ := strconv.ParseInt(arg, 10, 64) //nolint:errcheck // checked by understand
		return act.row(ctx, store, id)
	}
	arg = keyOf(arg)
	story, err := admin.New(store).Outline(ctx, arg)
	if err != nil {
		return admin.Message{}, err
	}
	named := act.selected.cmd.Flags().Changed("epoch")
	var found []admin.Message
	var epochs []int
	for _, m := range story.Open {
		if m.Consumer == act.selected.consumer && isKey(arg, m.MessageID) && (!named || m.Epoch == act.selected.epoch) {
			found, epochs = append(found, m), append(epochs, m.Epoch)
		}
	}
	switch {
	case len(found) > 1 && !named:
		slices.Sort(epochs)
		var texts []string
		for _, epoch := range epochs {
			texts = append(texts, strconv.Itoa(epoch))
		}
		return admin.Message{}, usagef("the key %q of consumer %q is open in epochs %s: give --epoch",
			arg, act.selected.consumer, strings.Join(texts, " and "))
	case len(found) > 0:
		return found[0], nil
	}
	return admin.Message{}, notFoundf("consumer %q has no open message with the key %q: millrace explain %s tells more",
		act.selected.consumer, arg, keyText(arg))
}

// isKey reports whether arg is the key of a message that is shown as shown. Of a long key the inbox
// stores a hash.
func isKey(arg, shown string) bool {
	return arg == shown || keycode.String(keycode.Encode(arg)) == shown
}

// carryOut carries out the plan, unless nothing would deliver one of the messages.
func (act *action) carryOut(ctx context.Context, store *inbox.Store, p *plan) error {
	operator, err := act.by.operator()
	if err != nil {
		return err
	}
	if err := act.deliverable(p); err != nil {
		return err
	}
	done := 0
	if act.matching {
		bar := act.progress(act.name, p.total)
		done, err = act.all(ctx, store, p.filter, operator, admin.Pace{PerSecond: act.rate, Progress: bar.at})
		bar.end()
	} else {
		for _, m := range p.messages {
			if err = act.one(ctx, store, m.ID, operator); err != nil {
				break
			}
			done++
		}
	}
	what := fmt.Sprintf("%s %s", messagesIn(admin.Count{N: done}), act.done)
	shown := act.print(map[string]any{"messages": done, "done": act.name}, func() string { return what + "\n" })
	return errors.Join(partly(done, what, err), shown)
}

// deliverable returns an error if nothing would deliver one of the messages.
func (act *action) deliverable(p *plan) error {
	if !act.needsQueue() {
		return nil
	}
	for _, t := range p.takes {
		if !t.Served {
			return fmt.Errorf("consumer %q%s: %w", t.Consumer, epochOf(t.Epoch), inbox.ErrNotServed)
		}
	}
	return nil
}

// target returns the publisher for messages that no queue serves.
func (a *app) target(ctx context.Context, through bool) (message.Publisher, error) {
	if !through {
		return nil, nil
	}
	return a.publisher(ctx)
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/spf13/cobra"
)

// statuses are the states of open messages, in the order in which a message goes through them.
var statuses = []admin.Status{
	admin.Received, admin.InProgress, admin.Settling, admin.FailedRetryable, admin.FailedTerminal, admin.Parked, admin.Held,
}

// statusNames returns the users' names for the statuses, in the same order.
func statusNames() []string {
	names := make([]string, 0, len(statuses))
	for _, s := range statuses {
		names = append(names, strings.ToLower(s.String()))
	}
	return names
}

// namesOf returns the names of the statuses that are allowed.
func namesOf(allowed func(admin.Status) bool) (names []string) {
	for i, name := range statusNames() {
		if allowed(statuses[i]) {
			names = append(names, name)
		}
	}
	return names
}

// selection holds the flags that select messages.
type selection struct {
	consumer, status, topic string
	epoch                   int
	group                   int64
	since, until            string
	cmd                     *cobra.Command
	app                     *app
}

// selects adds the flags of a selection to cmd.
func (a *app) selects(cmd *cobra.Command) *selection {
	s := &selection{cmd: cmd, app: a}
	flags := cmd.Flags()
	flags.StringVar(&s.consumer, "consumer", "", "of this `consumer`")
	flags.IntVar(&s.epoch, "epoch", 0, "of this `epoch`; all unless given")
	flags.StringVar(&s.status, "status", "", "in this `state`: "+strings.Join(statusNames(), ", "))
	flags.StringVar(&s.topic, "topic", "", "from this `topic`")
	flags.Int64Var(&s.group, "group", 0, "whose last error is of this `group`, see millrace list --groups")
	flags.StringVar(&s.since, "since", "", "stored since a `time`, such as 2026-05-01T08:00:00Z, or so long ago, such as 2h")
	flags.StringVar(&s.until, "until", "", "stored before a `time`, or so long ago")
	a.completeConsumer(cmd)
	complete(cmd, "status", statusNames())
	return s
}

// filter returns s as a filter.
func (s *selection) filter(ctx context.Context) (admin.Filter, error) {
	f := admin.Filter{Consumer: s.consumer, Topic: s.topic, ErrorGroup: s.group}
	if s.cmd.Flags().Changed("epoch") {
		f.Epoch = &s.epoch
	}
	if s.cmd.Flags().Changed("group") && s.group <= 0 {
		return f, usagef("--group %d is no group: millrace list --groups shows the groups", s.group)
	}
	if s.status != "" {
		names := statusNames()
		i := slices.Index(names, strings.ToLower(strings.ReplaceAll(s.status, "-", "_")))
		if i < 0 {
			return f, usagef("there is no status %q: choose one of %s", s.status, strings.Join(names, ", "))
		}
		f.Status = statuses[i]
	}
	var err error
	if f.ReceivedSince, err = s.app.instant(ctx, "since", s.since); err != nil {
		return f, err
	}
	f.ReceivedUntil, err = s.app.instant(ctx, "until", s.until)
	return f, err
}

// instant parses a time, or how long ago it was by the database's clock.
func (a *app) instant(ctx context.Context, flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return time.Time{}, usagef("--%s %s lies in the future: it says how long ago, so leave the minus out", flag, text)
		}
		now, err := a.now(ctx)
		return now.Add(-d), err
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
			continue
		case t.IsZero(): // a filter takes it for no limit
			return t, usagef("--%s %s is the zero time, which is no limit: leave the flag out, or give another time", flag, text)
		}
		return t, nil
	}
	return time.Time{}, usagef("--%s %q is neither a time in UTC, such as 2026-05-01T08:00:00Z or 2026-05-01, nor a duration, such as 90m", flag, text)
}

// selecting are the flags whose empty value would select more than the user meant.
var selecting = []string{
	"consumer", "status", "topic", "since", "until", "before", "action", "handler", "into", "context", "on",
}

// notEmpty refuses flags that were given and are empty, as by a variable of the shell that is not set.
func notEmpty(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return usagef("--%s is empty: give a value, or leave the flag out", name)
		}
	}
	return nil
}

// known returns an error if f names a consumer that does not exist.
func known(consumers []admin.KnownConsumer, f admin.Filter) error {
	if f.Consumer == "" {
		return nil
	}
	var names []string
	for _, c := range consumers {
		if c.Name == f.Consumer && (f.Epoch == nil || *f.Epoch == c.Epoch) {
			return nil
		}
		names = append(names, fmt.Sprintf("%q (epoch %d)", c.Name, c.Epoch))
	}
	return noConsumer(f, names)
}

func noConsumer(f admin.Filter, names []string) error {
	what := fmt.Sprintf("there is no consumer %q", f.Consumer)
	if f.Epoch != nil {
		what += fmt.Sprintf(" with epoch %d", *f.Epoch)
	}
	if len(names) == 0 {
		return notFoundf("%s: none has handled a message yet; is --namespace right?", what)
	}
	return notFoundf("%s: there are %s; is --namespace right?", what, strings.Join(names, ", "))
}

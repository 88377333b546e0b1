package main

import (
	"context"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/spf13/cobra"
)

const statusExamples = `  millrace status
  millrace status --watch
  millrace status --watch=10s --namespace shop
  millrace status --json | jq '.consumers[] | select(.parked.n > 0)'`

func (a *app) statusCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "What waits, what is stuck, and who works on it",
		Long: `Shows for each consumer and epoch how many messages are open in which state, how old
the oldest waiting one is, whether a queue serves them, and which outcomes may not be
published; then the outbox, its relays and the size of the tables.

Numbers are counted up to a limit: 10000+ is 10000 or more.`,
		Example: statusExamples,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&every, "watch", 0, "repaint each `interval` until Ctrl-C")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return a.doEach(func(ctx context.Context, _ []string) error { return a.status(ctx) })(cmd, args)
		}
		if every < 100*time.Millisecond {
			return usagef("--watch %v is less than 100ms", every)
		}
		return a.doLong(func(ctx context.Context, _ []string) error {
			return a.watch(ctx, every, func(ctx context.Context) error { return a.each(ctx, a.status) })
		})(cmd, args)
	}
	return cmd
}

// watch repeats show until the user interrupts it.
func (a *app) watch(ctx context.Context, every time.Duration, show func(context.Context) error) error {
	out := a.out
	defer func() { a.out = out }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		page := &page{}
		a.out = page
		err := show(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err != nil && len(a.named) < 2 {
			return err
		}
		a.out = out
		if a.screen {
			page.repaint(out)
		} else {
			a.printf("%s\n", page.text)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// status is the whole status in JSON.
type status struct {
	Consumers []consumerStatus `json:"consumers"`
	Outbox    outboxStatus     `json:"outbox"`
	Tables    []tableStatus    `json:"tables"`
}

type consumerStatus struct {
	Consumer        string  `json:"consumer"`
	Epoch           int     `json:"epoch"`
	Queue           string  `json:"queue"`
	Due             count   `json:"due"`
	Waiting         count   `json:"waiting"`
	Taken           count   `json:"taken"`
	InProgress      count   `json:"in_progress"`
	Stale           count   `json:"stale"`
	Settling        count   `json:"settling"`
	Failed          count   `json:"failed_terminal"`
	Parked          count   `json:"parked"`
	Held            count   `json:"held"`
	OldestPending   float64 `json:"oldest_pending_seconds"`
	Unsettled       count   `json:"unsettled_outcomes"`
	OldestUnsettled float64 `json:"oldest_unsettled_seconds"`
}

// queueOf says who delivers the stored messages of a consumer.
func queueOf(b admin.Backlog) string {
	switch {
	case b.Paused:
		return "paused"
	case b.Served:
		return "served"
	}
	return "none"
}

func (a *app) status(ctx context.Context) error {
	store, err := a.store(ctx)
	if err != nil {
		return err
	}
	backlog, err := admin.New(store).Backlog(ctx, admin.BacklogOptions{})
	if err != nil {
		return err
	}
	s := status{Consumers: []consumerStatus{}}
	for _, b := range backlog {
		s.Consumers = append(s.Consumers, consumerStatus{
			Consumer: b.Consumer, Epoch: b.Epoch, Queue: queueOf(b),
			Due: countOf(b.Due), Waiting: countOf(b.Waiting), Taken: countOf(b.Taken),
			InProgress: countOf(b.InProgress), Stale: countOf(b.Stale), Settling: countOf(b.Settling),
			Failed: countOf(b.FailedTerminal), Parked: countOf(b.Parked), Held: countOf(b.Held),
			OldestPending: seconds(b.OldestPending), Unsettled: countOf(b.Unsettled),
			OldestUnsettled: seconds(b.OldestUnsettled),
		})
	}
	if s.Outbox, err = a.outboxStatus(ctx); err != nil {
		return err
	}
	if s.Tables, err = tablesOf(ctx, store); err != nil {
		return err
	}
	return a.print(s, func() string { return consumersTable(backlog) + s.Outbox.text() + tablesTable(s.Tables) })
}

func consumersTable(backlog []admin.Backlog) string {
	if len(backlog) == 0 {
		return "No consumer has handled a message yet.\n"
	}
	t := newTable("CONSUMER", "EPOCH", "QUEUE", "DUE", "WAITING", "TAKEN", "RUNNING", "STALE", "SETTLING", "FAILED",
		"PARKED", "HELD", "OLDEST", "UNSETTLED", "SINCE")
	for _, b := range backlog {
		t.add(b.Consumer, b.Epoch, queueOf(b), b.Due, b.Waiting, b.Taken, b.InProgress, b.Stale, b.Settling,
			b.FailedTerminal, b.Parked, b.Held, age(b.OldestPending), b.Unsettled, age(b.OldestUnsettled))
	}
	return t.String()
}

func age(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return span(d)
}

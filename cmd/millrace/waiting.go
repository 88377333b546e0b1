package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/inbox/admin"
)

// waitingAggregate is an aggregate that waits, in JSON.
type waitingAggregate struct {
	Aggregate string  `json:"aggregate"`
	Consumer  string  `json:"consumer"`
	Epoch     int     `json:"epoch"`
	WaitsFor  int64   `json:"waits_for_version,string"`
	Applied   int64   `json:"applied_version,string"`
	Lowest    int64   `json:"lowest_held_version,string"`
	Held      count   `json:"held"`
	Since     *string `json:"since"`
}

func (a *app) waitingCommand() *cobra.Command {
	var consumer, after string
	var epoch, limit int
	cmd := &cobra.Command{
		Use:   "waiting",
		Short: "Aggregates that hold messages, and the version that each waits for",
		Long: `Lists the aggregates of which the version gate holds messages, because an earlier version was
not applied: it was lost, it is parked, or its producer skipped it. millrace skip-gap has an aggregate
go on without it.`,
		Example: "  millrace waiting\n  millrace waiting --consumer billing --json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&consumer, "consumer", "", "of this `consumer`")
	flags.IntVar(&epoch, "epoch", 0, "of this `epoch`; all unless given")
	flags.IntVar(&limit, "limit", 50, fmt.Sprintf("at most so many `aggregates`, up to %d", admin.MaxPage))
	flags.StringVar(&after, "after", "", "those after this `cursor`, which the list before ended with")
	a.completeConsumer(cmd)
	cmd.RunE = a.doEach(func(ctx context.Context, _ []string) error {
		f := admin.Filter{Consumer: consumer}
		if cmd.Flags().Changed("epoch") {
			f.Epoch = &epoch
		}
		if limit < 1 || limit > admin.MaxPage {
			return usagef("--limit %d is not between 1 and %d", limit, admin.MaxPage)
		}
		store, err := a.store(ctx)
		if err != nil {
			return err
		}
		if err := a.mustKnow(ctx, store, f); err != nil {
			return err
		}
		found, err := admin.New(store).Waiting(ctx, admin.ConsumerFilter{Consumer: f.Consumer, Epoch: f.Epoch}, after, limit)
		if err != nil {
			return err
		}
		return a.printWaiting(found, limit)
	})
	return cmd
}

func (a *app) printWaiting(found []admin.WaitingAggregate, limit int) error {
	all := []waitingAggregate{}
	var next *string
	for _, w := range found {
		all = append(all, waitingAggregate{
			jsonKey(w.Aggregate), w.Consumer, w.Epoch, w.Applied + 1, w.Applied, w.Lowest, countOf(w.Held), since(w.Since),
		})
	}
	if len(found) == limit {
		next = &found[limit-1].Cursor
	}
	return a.print(map[string]any{"aggregates": all, "next": next}, func() string {
		if len(found) == 0 {
			return "No aggregate waits.\n"
		}
		t := newTable("AGGREGATE", "CONSUMER", "EPOCH", "WAITS FOR", "APPLIED", "LOWEST HELD", "HELD", "SINCE")
		for _, w := range found {
			t.add(keyText(w.Aggregate), w.Consumer, w.Epoch, w.Applied+1, w.Applied, w.Lowest, w.Held, stamp(w.Since))
		}
		if next != nil {
			return t.String() + fmt.Sprintf("There may be more: add --after %s.\n", *next)
		}
		return t.String()
	})
}

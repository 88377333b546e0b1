package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/bounded"
	"github.com/millrace-go/millrace/internal/database"
)

// Backlog counts the open messages of one consumer and epoch.
type Backlog struct {
	Consumer string
	Epoch    int
	Paused   bool // by an operator
	Served   bool // a queue serves the consumer, in some process

	Due            Count // RECEIVED, or FAILED_RETRYABLE and due: deliverable now
	Waiting        Count // RECEIVED or FAILED_RETRYABLE, not due yet
	Taken          Count // RECEIVED or FAILED_RETRYABLE, and leased: about to be delivered
	InProgress     Count // IN_PROGRESS: with a handler
	Stale          Count // IN_PROGRESS, but the lease ended: its process gave no answer
	Settling       Count // SETTLING: handled, its outcome is not yet published
	FailedTerminal Count // waits for an operator
	Parked         Count // waits for an operator
	Held           Count // waits for its predecessor

	// OldestPending is how long the oldest message that is RECEIVED or FAILED_RETRYABLE has waited since
	// it was stored, or, if an operator retried it and no attempt failed since, since it became due.
	// It leaves out a message whose NotBefore has not come, and is that of the first CountTo messages.
	// OldestHeld is the age of the oldest HELD one.
	OldestPending time.Duration
	OldestHeld    time.Duration

	Unsettled       Count         // outcomes that may be unpublished
	OldestUnsettled time.Duration // age of the oldest counted one

	Retention time.Duration // how long claims are kept, or inbox.Forever
	Window    time.Duration // the longest declared redelivery window, 0 for none
}

// Count is a number of messages, counted up to a limit.
type Count = bounded.Count

// BacklogOptions says how [Admin.Backlog] counts.
type BacklogOptions struct {
	// CountTo is where counting stops; a figure beyond it says "at least". Defaults to 10,000.
	CountTo int
}

// Backlog counts the open messages of each consumer and epoch of the namespace, sorted by name and
// epoch. It takes some milliseconds for each, however many rows there are. It reads the figures one
// after the other: in between, a message may change its state.
func (a *Admin) Backlog(ctx context.Context, o BacklogOptions) ([]Backlog, error) {
	if o.CountTo < 0 {
		return nil, fmt.Errorf("inbox: backlog: CountTo %d is negative", o.CountTo)
	}
	all, err := a.backlog(ctx, cmp.Or(o.CountTo, 10_000))
	if err != nil {
		return nil, fmt.Errorf("inbox: backlog: %w", database.Explain(err))
	}
	return all, nil
}

func (a *Admin) backlog(ctx context.Context, most int) ([]Backlog, error) {
	now, err := a.rows.Now(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := a.matching(ctx, Filter{})
	if err != nil {
		return nil, err
	}
	all := make([]Backlog, 0, len(consumers))
	for _, c := range consumers {
		b := Backlog{
			Consumer: string(c.Name), Epoch: c.Epoch, Paused: c.Paused, Served: c.Served,
			Retention: inbox.Forever, Window: time.Duration(c.Window) * time.Microsecond,
		}
		if c.Retention != 0 {
			b.Retention = time.Duration(c.Retention) * time.Microsecond
		}
		if err := a.countOpen(ctx, c.ID, &b, now, most); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Backlog) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all, nil
}

// countOpen sets the counts of one consumer. Each count reads a range of an index and stops after
// most rows.
func (a *Admin) countOpen(ctx context.Context, consumer int32, b *Backlog, now time.Time, most int) error {
	db, at := a.rows.Reader(ctx), now.UnixMicro()
	for status, count := range map[Status]*Count{
		Settling: &b.Settling, FailedTerminal: &b.FailedTerminal, Parked: &b.Parked, Held: &b.Held,
	} {
		var n int
		if err := sqlx.GetContext(ctx, db, &n, a.rows.Dialect.Remedy.CountStatus, consumer, status, most+1); err != nil {
			return err
		}
		*count = bounded.UpTo(n, most)
	}
	if err := a.countLeased(ctx, consumer, b, at, most); err != nil {
		return err
	}
	return a.countOldest(ctx, consumer, b, at, most)
}

// countLeased sets the counts of the states in which messages may be leased.
func (a *Admin) countLeased(ctx context.Context, consumer int32, b *Backlog, at int64, most int) error {
	var due Count
	for status, count := range map[Status]struct{ lapsed, leased, rest *Count }{
		Received:        {lapsed: &due, leased: &b.Taken, rest: &b.Waiting},
		InProgress:      {lapsed: &b.Stale, leased: &b.InProgress, rest: new(Count)},
		FailedRetryable: {lapsed: &due, leased: &b.Taken, rest: &b.Waiting},
	} {
		var n, lapsed, leased int
		err := a.rows.Reader(ctx).QueryRowxContext(ctx, a.rows.Dialect.Remedy.CountLapsed, at, at, consumer, status, most+1).
			Scan(&n, &lapsed, &leased)
		if err != nil {
			return err
		}
		for part, m := range map[*Count]int{count.lapsed: lapsed, count.leased: leased, count.rest: n - lapsed - leased} {
			*part = part.Plus(Count{N: m, AtLeast: n > most})
		}
	}
	if due.AtLeast { // the count stopped early: another index finds those that are due
		err := sqlx.GetContext(ctx, a.rows.Reader(ctx), &due.N, a.rows.Dialect.Remedy.CountDue, consumer, at, most+1, consumer, at, most+1)
		if err != nil {
			return err
		}
	}
	b.Due = bounded.UpTo(due.N, most)
	return nil
}

// countOldest sets the ages and the outcomes of one consumer.
func (a *Admin) countOldest(ctx context.Context, consumer int32, b *Backlog, at int64, most int) error {
	db := a.rows.Reader(ctx)
	for _, of := range []struct {
		status Status
		look   int // retried and delayed messages are not in the order of their ages
		oldest *time.Duration
	}{{Received, most, &b.OldestPending}, {FailedRetryable, most, &b.OldestPending}, {Held, 1, &b.OldestHeld}} {
		var since int64
		if err := sqlx.GetContext(ctx, db, &since, a.rows.Dialect.Remedy.SelectOldest, at, at, consumer, of.status, of.look); err != nil {
			return err
		}
		*of.oldest = max(*of.oldest, time.Duration(at-since)*time.Microsecond)
	}
	var outcomes int
	var stored int64
	err := db.QueryRowxContext(ctx, a.rows.Dialect.Remedy.CountOutcomes, at, consumer, most+1).Scan(&outcomes, &stored)
	b.Unsettled, b.OldestUnsettled = bounded.UpTo(outcomes, most), max(time.Duration(at-stored)*time.Microsecond, 0)
	return err
}

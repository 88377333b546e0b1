package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// Backlog is what is stored and open for one consumer and epoch.
type Backlog struct {
	Consumer string
	Epoch    int
	Paused   bool // by an operator
	Served   bool // a queue delivers it, in this or another process

	Due            Count // RECEIVED, or FAILED_RETRYABLE and due: could be delivered now
	Waiting        Count // FAILED_RETRYABLE, and not due yet
	Taken          Count // RECEIVED or FAILED_RETRYABLE, and leased: about to be handed out
	InProgress     Count // IN_PROGRESS: with a handler
	Stale          Count // IN_PROGRESS, but the lease lapsed: whoever had it gave no answer
	Settling       Count // SETTLING: handled, what the handler produced is to be published
	FailedTerminal Count // waits for an operator
	Parked         Count // waits for an operator
	Held           Count // waits for its predecessor

	// OldestPending is the age of the message that was stored first of those that are
	// RECEIVED or FAILED_RETRYABLE.
	OldestPending time.Duration
}

// Count is a number of messages, counted up to a limit.
type Count struct {
	N       int
	AtLeast bool // there may be more
}

// String returns the number, with a plus where there may be more.
func (c Count) String() string {
	if c.AtLeast {
		return fmt.Sprintf("%d+", c.N)
	}
	return fmt.Sprint(c.N)
}

// BacklogOptions is how [Store.Backlog] counts.
type BacklogOptions struct {
	// CountTo is up to which number is counted; beyond it a figure says "at least". Defaults
	// to 10,000.
	CountTo int
}

// Backlog returns what is open for each consumer and epoch of the namespace, by name and
// epoch. It takes some milliseconds for each, however many rows there are. The figures are read one
// after the other: between two of them a message may go from one state to the next.
func (s *Store) Backlog(ctx context.Context, o BacklogOptions) ([]Backlog, error) {
	if o.CountTo < 0 {
		return nil, fmt.Errorf("inbox: backlog: CountTo %d is negative", o.CountTo)
	}
	all, err := s.backlog(ctx, cmp.Or(o.CountTo, 10_000))
	if err != nil {
		return nil, fmt.Errorf("inbox: backlog: %w", explain(err))
	}
	return all, nil
}

func (s *Store) backlog(ctx context.Context, most int) ([]Backlog, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := s.matching(ctx, Filter{})
	if err != nil {
		return nil, err
	}
	all := make([]Backlog, 0, len(consumers))
	for _, c := range consumers {
		b := Backlog{Consumer: string(c.Name), Epoch: c.Epoch, Paused: c.Paused, Served: c.Served}
		if err := s.countOpen(ctx, c.ID, &b, now, most); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Backlog) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all, nil
}

// countOpen fills in the figures of one consumer. Each reads a range of an index, which
// ends after most rows.
func (s *Store) countOpen(ctx context.Context, consumer int32, b *Backlog, now time.Time, most int) error {
	db, at := s.reader(ctx), now.UnixMicro()
	for status, count := range map[Status]*Count{
		Settling: &b.Settling, FailedTerminal: &b.FailedTerminal, Parked: &b.Parked, Held: &b.Held,
	} {
		var n int
		if err := sqlx.GetContext(ctx, db, &n, s.dialect.Remedy.CountStatus, consumer, status, most+1); err != nil {
			return err
		}
		*count = upTo(n, most)
	}
	var due int
	if err := sqlx.GetContext(ctx, db, &due, s.dialect.Remedy.CountDue, consumer, at, most+1); err != nil {
		return err
	}
	b.Due = upTo(due, most)
	for status, count := range map[Status]struct{ lapsed, leased, rest *Count }{
		Received:        {lapsed: new(Count), leased: &b.Taken, rest: new(Count)},
		InProgress:      {lapsed: &b.Stale, leased: &b.InProgress, rest: new(Count)},
		FailedRetryable: {lapsed: new(Count), leased: &b.Taken, rest: &b.Waiting},
	} {
		var n, lapsed, leased int
		err := db.QueryRowxContext(ctx, s.dialect.Remedy.CountLapsed, at, at, consumer, status, most+1).Scan(&n, &lapsed, &leased)
		if err != nil {
			return err
		}
		count.lapsed.add(lapsed, n > most)
		count.leased.add(leased, n > most)
		count.rest.add(n-lapsed-leased, n > most)
	}
	for _, status := range []Status{Received, FailedRetryable} {
		var stored int64
		err := sqlx.GetContext(ctx, db, &stored, s.dialect.Remedy.SelectOldest, consumer, status)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		b.OldestPending = max(b.OldestPending, time.Duration(at-stored)*time.Microsecond)
	}
	return nil
}

// upTo is a count of n that ended behind most.
func upTo(n, most int) Count { return Count{N: min(n, most), AtLeast: n > most} }

// add counts n more; there may be more than these where the look ended before the last.
func (c *Count) add(n int, cut bool) {
	c.N += n
	c.AtLeast = c.AtLeast || cut
}

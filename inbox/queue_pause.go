package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// sawConsumer is the row of a queue's consumer, as it was last read.
type sawConsumer struct {
	row        stored.Consumer
	at         time.Time
	generation int64
	pauses     int64
}

// consumer returns the row of the queue's consumer, read at most horizon ago. It reads the row of a
// paused consumer each time.
func (q *Queue) consumer(ctx context.Context, horizon time.Duration) (stored.Consumer, error) {
	s := q.store
	now := &sawConsumer{at: time.Now(), generation: s.db.Generation(), pauses: s.pauses.Load()}
	if saw := q.saw.Load(); saw != nil && !saw.row.Paused && saw.generation == now.generation &&
		saw.pauses == now.pauses && now.at.Sub(saw.at) < min(horizon, time.Second) {
		return saw.row, nil
	}
	row, err := s.rows.Consumer(ctx, q.name.Name, q.name.Epoch)
	if errors.Is(err, ErrNotFound) && q.name.Epoch > 0 { // older epochs may have open messages
		if _, err = q.register(ctx); err == nil {
			row, err = s.rows.Consumer(ctx, q.name.Name, q.name.Epoch)
		}
	}
	if err == nil {
		now.row = row
		q.saw.Store(now)
	}
	return row, err
}

// answer is consumer before a look, and notes whether the consumer is paused. A look that may take long needs a database that
// has just answered, on the connection that the pool gives away next: one that is dead ends answer soon.
func (q *Queue) answer(ctx context.Context, horizon time.Duration) (stored.Consumer, error) {
	ctx, cancel := q.soon(ctx)
	defer cancel()
	if q.slow.Load() {
		horizon = 0
	}
	row, err := q.consumer(ctx, horizon)
	if err == nil {
		q.paused.Store(row.Paused)
	}
	return row, err
}

// Paused reports whether an operator paused the consumer, as [Queue.Take] or [Queue.Watch] last found.
func (q *Queue) Paused() bool { return q.paused.Load() }

// Watch looks whether the consumer is paused, once in each period, and when an operator pauses or resumes it in this process,
// until ctx ends. While all handlers are busy, nobody calls Take.
func (q *Queue) Watch(ctx context.Context, period time.Duration) {
	rings, leave := q.Listen()
	defer leave()
	tick := time.NewTicker(period)
	defer tick.Stop()
	for pauses := q.store.pauses.Load(); ; {
		select {
		case <-rings:
			if q.store.pauses.Load() == pauses {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		pauses = q.store.pauses.Load()
		_, _ = q.answer(ctx, 0) // the next one may succeed, and a look says what fails
	}
}

// How often a queue announces that it serves its consumer, and how long an announcement holds at
// least.
const (
	sayServed = 10 * time.Second
	served    = 30 * time.Second
)

// serve announces in the table, every few seconds, that this queue delivers the stored messages of
// the consumer. The caller calls it again within period. If serve returns nil, an announcement
// holds.
func (q *Queue) serve(ctx context.Context, consumer int32, period time.Duration) error {
	ctx, cancel := q.soon(ctx)
	defer cancel()
	leave, err := q.serving.Enter(ctx)
	if err != nil {
		return fmt.Errorf("wait for another announcement that it is served: %w", err)
	}
	defer leave()
	now, until := time.Now().Round(0), served+2*period
	if passed := now.Sub(q.served); passed >= 0 && passed < sayServed {
		return nil
	}
	err = q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, q.store.dialect.Remedy.ServeConsumer, until.Microseconds(), consumer)
		return err
	})
	if err != nil {
		return fmt.Errorf("announce that it is served: %w", err)
	}
	q.served = now
	return nil
}

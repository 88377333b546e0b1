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

// Paused reports whether the last [Queue.Take] found that an operator paused the consumer.
func (q *Queue) Paused() bool { return q.paused.Load() }

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

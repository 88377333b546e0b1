package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"
	"github.com/millrace-go/millrace/internal/database"
)

// Pause has no queue, in any process, deliver what is stored for the consumer until
// [Store.Resume], and pubsub.Durable store what arrives meanwhile. What is with a handler
// already is finished. Queues of other processes notice when they look again, after their Poll.
// A newer epoch is not paused with it.
func (s *Store) Pause(ctx context.Context, consumer string, epoch int, by Operator) error {
	return s.setPaused(ctx, consumer, epoch, by, true, "pause")
}

// Resume ends a [Store.Pause].
func (s *Store) Resume(ctx context.Context, consumer string, epoch int, by Operator) error {
	return s.setPaused(ctx, consumer, epoch, by, false, "resume")
}

func (s *Store) setPaused(ctx context.Context, consumer string, epoch int, by Operator, paused bool, action string) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.consumerRow(ctx, consumer, epoch)
	if err == nil {
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, s.dialect.Remedy.PauseConsumer, paused, row.ID); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, s.dialect.InsertAudit, []byte(by.Name), []byte(action), []byte(by.Reason),
				row.ID, []byte{}, []byte("what is stored for the consumer"))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("inbox: %s consumer %q: %w", action, consumer, database.Explain(err))
	}
	s.sayDecided(by, action, watermill.LogFields{"consumer": consumer, "epoch": epoch})
	s.pauses.Add(1)
	s.wakeQueue(consumerName{consumer, epoch}) // which looks
	return nil
}

// sawConsumer is the row of a queue's consumer, as it was last read.
type sawConsumer struct {
	row        consumerRow
	at         time.Time
	generation int64
	pauses     int64
}

// consumer returns the row of the queue's consumer, one that is no older than horizon. One
// that is paused is read each time.
func (q *Queue) consumer(ctx context.Context, horizon time.Duration) (consumerRow, error) {
	s := q.store
	now := &sawConsumer{at: time.Now(), generation: s.generation.Load(), pauses: s.pauses.Load()}
	if saw := q.saw.Load(); saw != nil && !saw.row.Paused && saw.generation == now.generation &&
		saw.pauses == now.pauses && now.at.Sub(saw.at) < min(horizon, time.Second) {
		return saw.row, nil
	}
	row, err := s.consumerRow(ctx, q.name.name, q.name.epoch)
	if errors.Is(err, ErrNotFound) && q.name.epoch > 0 { // older ones may have left something
		if _, err = q.register(ctx); err == nil {
			row, err = s.consumerRow(ctx, q.name.name, q.name.epoch)
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

// How often a queue says that it serves its consumer, and how long that counts at least.
const (
	sayServed = 10 * time.Second
	served    = 30 * time.Second
)

// serve says in the table, every few seconds, that this queue delivers what is stored for
// the consumer. It will say so again within period. Where it returns nil, it has been said.
func (q *Queue) serve(ctx context.Context, consumer int32, period time.Duration) error {
	q.serving.Lock()
	defer q.serving.Unlock()
	now, until := time.Now().Round(0), served+2*period
	if passed := now.Sub(q.served); passed >= 0 && passed < sayServed {
		return nil
	}
	err := q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, q.store.dialect.Remedy.ServeConsumer, until.Microseconds(), consumer)
		return err
	})
	if err != nil {
		return fmt.Errorf("say that it is served: %w", err)
	}
	q.served = now
	return nil
}

package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// tellParked calls OnPark. Call it for each message that the transaction makes wait for an
// operator.
type tellParked func(msg *message.Message, reason string) error

// write runs work in a transaction, in which work can call OnPark. If OnPark fails, write runs work
// again without it, with time of its own: a message that cannot be announced is parked all the same. If
// the database went away meanwhile, write fails: the message is parked later, with its announcement.
func (q *Queue) write(ctx context.Context, work func(ctx context.Context, tx *sqlx.Tx, tell tellParked) error) error {
	if q.config.OnPark == nil {
		return q.silently(ctx, work)
	}
	var own *ambient.Tx
	err := q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		own = ambient.New(tx, q.store.db.DB)
		defer own.End()
		within := ambient.With(ctx, own)
		return work(ctx, tx, func(msg *message.Message, reason string) error {
			msg.SetContext(within)
			err := q.onPark(msg, reason)
			// MySQL ends the connection of whoever sends it too large a statement.
			if err != nil && !errors.Is(database.Explain(err), database.ErrTooLarge) {
				if _, gone := tx.ExecContext(ctx, `SELECT 1`); dialect.Classify(gone) == dialect.Unavailable {
					return fmt.Errorf("%w, while OnPark failed: %v", gone, err) //nolint:errorlint // the database is to blame
				}
			}
			return err
		})
	})
	if err == nil {
		own.Committed()
	}
	var failed *onParkError
	if !errors.As(err, &failed) {
		return err
	}
	q.store.log.Error("inbox: OnPark failed; the message is parked without it", failed.cause,
		q.fields().Add(watermill.LogFields{"message_uuid": failed.uuid, "reason": failed.reason}))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest) // OnPark may have hung
	defer cancel()
	return q.silently(ctx, work)
}

func (q *Queue) silently(ctx context.Context, work func(ctx context.Context, tx *sqlx.Tx, tell tellParked) error) error {
	return q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
		return work(ctx, tx, func(*message.Message, string) error { return nil })
	})
}

// onPark calls the service's OnPark. A panic becomes an error.
func (q *Queue) onPark(msg *message.Message, reason string) error {
	call := func() (err error) {
		defer recovered("OnPark", &err)
		return sound(q.config.OnPark(msg, reason))
	}
	if err := q.store.counted(call()); err != nil {
		return &onParkError{msg.UUID, reason, err}
	}
	return nil
}

type onParkError struct {
	uuid   string
	reason string
	cause  error
}

func (e *onParkError) Error() string { return "OnPark: " + e.cause.Error() }
func (e *onParkError) Unwrap() error { return e.cause }

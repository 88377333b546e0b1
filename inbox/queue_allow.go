package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// Allow marks replayed msgs in the queue so that the consumer handles them even if it refuses
// replayed messages; see [ReplayRefuse]. It makes due those that are parked because they were
// refused. Call it in the transaction of [Queue.Put], with its topic.
func (q *Queue) Allow(ctx context.Context, by stored.Operator, topic string, msgs ...*message.Message) error {
	if err := by.Validate(); err != nil {
		return err
	}
	id, err := q.register(ctx)
	if err == nil {
		err = q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
			for _, msg := range msgs {
				if err := q.allow(ctx, tx, by, id, topic, msg); err != nil {
					return fmt.Errorf("message %q: %w", msg.UUID, err)
				}
			}
			return nil
		})
	}
	return q.explain(fmt.Sprintf("allow %d replayed messages", len(msgs)), err)
}

func (q *Queue) allow(
	ctx context.Context, tx *sqlx.Tx, by stored.Operator, consumer int32, topic string, msg *message.Message,
) error {
	s := q.store
	a, err := q.arrival(topic, msg)
	if err == nil && a.status == stored.FailedTerminal {
		err = errors.New(a.text)
	}
	if err != nil {
		return err
	}
	var open lookup
	err = open.scan(tx.QueryRowContext(ctx, s.dialect.Lookup, consumer, a.id))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("look up the claim: %w", err)
	}
	if err == nil && open.OpenID.Valid && stored.Status(open.OpenStatus.Int16) == stored.Parked {
		row, err := s.rows.Message(ctx, tx, open.OpenID.Int64)
		if err != nil || !parkedAsReplay(&row) {
			return err
		}
		return s.rows.MakeDue(ctx, tx, by, stored.Retry, &row)
	}
	if _, err := tx.ExecContext(ctx, s.dialect.Queue.AllowMessage, consumer, a.id, a.hash); err != nil {
		return fmt.Errorf("allow it: %w", err)
	}
	row := stored.Message{Consumer: consumer, MessageID: a.id, UUID: []byte(msg.UUID), Status: stored.Received, Reason: []byte("replayed on purpose")}
	return s.rows.Audit(ctx, tx, by, stored.Retry, &row)
}

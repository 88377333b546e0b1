package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// Allow has msgs handled that were put into the queue and are replayed ones, although the consumer
// refuses those; see [ReplayRefuse]. One that is parked as refused is made due. Call it in the transaction
// of [Queue.Put].
func (q *Queue) Allow(ctx context.Context, by Operator, msgs ...*message.Message) error {
	if err := by.validate(); err != nil {
		return err
	}
	id, err := q.register(ctx)
	if err == nil {
		err = q.store.db.Write(ctx, func(tx *sqlx.Tx) error {
			for _, msg := range msgs {
				if err := q.allow(ctx, tx, by, id, msg); err != nil {
					return fmt.Errorf("message %q: %w", msg.UUID, err)
				}
			}
			return nil
		})
	}
	return q.name.explain(fmt.Sprintf("allow %d replayed messages", len(msgs)), err)
}

func (q *Queue) allow(ctx context.Context, tx *sqlx.Tx, by Operator, consumer int32, msg *message.Message) error {
	s := q.store
	a, err := q.arrival("", msg)
	if err == nil && a.status == FailedTerminal {
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
	if err == nil && open.OpenID.Valid && Status(open.OpenStatus.Int16) == Parked {
		row, err := s.findIn(ctx, tx, open.OpenID.Int64)
		if err != nil || !row.refused() {
			return err
		}
		return s.makeDue(ctx, tx, by, row)
	}
	row := messageRow{Consumer: consumer, MessageID: a.id, UUID: []byte(msg.UUID), Status: Received, Reason: []byte("replayed on purpose")}
	return s.audit(ctx, tx, by, retryAction, row)
}

package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
)

// Operator is who acts, and why; both are kept in the audit table.
type Operator struct {
	Name   string
	Reason string
}

func (o Operator) validate() error {
	if o.Name == "" || o.Reason == "" {
		return errors.New("inbox: an operator's call needs a Name and a Reason, which are kept")
	}
	return nil
}

// Parked lists parked messages of the namespace in the order they were parked: at most
// limit of them, after the row with the given ID (0 to begin).
func (s *Store) Parked(ctx context.Context, after int64, limit int) ([]Message, error) {
	return s.open(ctx, Parked, after, limit)
}

func (s *Store) open(ctx context.Context, status Status, after int64, limit int) ([]Message, error) {
	var rows []messageRow
	err := sqlx.SelectContext(ctx, s.reader(ctx), &rows, s.dialect.SelectMessages,
		[]byte(s.config.Namespace), status, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox: list messages: %w", explain(err))
	}
	messages := make([]Message, 0, len(rows))
	for _, row := range rows {
		m, err := row.message()
		if err != nil {
			return nil, fmt.Errorf("inbox: list messages: %w", err)
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// Release lets a parked message be handled: it is sent back to its topic, with its UUID,
// metadata and payload as they were, and the delivery runs the handler. A collision is
// then treated as the distinct message it is. Where publishing fails the message stays
// released; call Release again. [ErrNotFound] is returned for a message that is not parked
// or released.
func (s *Store) Release(ctx context.Context, id int64, by Operator, to message.Publisher) error {
	if err := by.validate(); err != nil {
		return err
	}
	if to == nil {
		return errors.New("inbox: release: nothing would deliver the message: give a publisher that sends it back to its topic")
	}
	if _, live := ambient.From(ctx).Live(s.db); live {
		return errors.New("inbox: release: not in a handler's transaction: the message would arrive before its commit")
	}
	row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if strings.HasPrefix(string(row.KeySource), "position") {
		return fmt.Errorf("inbox: release: message %d is known by its place in a log, and would get another one: "+
			"discard it and publish it by hand", id)
	}
	m, err := row.message()
	if err != nil {
		return fmt.Errorf("inbox: release: %w", err)
	}
	if m.Topic == "" {
		return fmt.Errorf("inbox: release: message %d came without a router, so its topic is not known: discard it "+
			"and publish it by hand", id)
	}
	err = s.write(ctx, func(tx *sqlx.Tx) error {
		moved, err := affected(tx.ExecContext(ctx, s.dialect.MoveMessage,
			FailedRetryable, []byte("released by "+by.Name), row.Consumer, row.MessageID, row.Status))
		if err != nil {
			return err
		}
		if moved != 1 || row.Status != Parked && row.Status != FailedRetryable {
			return ErrNotFound
		}
		return s.audit(ctx, tx, by, "release", row)
	})
	if err != nil {
		return fmt.Errorf("inbox: release message %d: %w", id, explain(err))
	}
	msg := message.NewMessage(m.UUID, m.Payload)
	msg.Metadata = m.Metadata
	if err := to.Publish(m.Topic, msg); err != nil {
		return fmt.Errorf("inbox: release message %d: publish to %q: %w", id, m.Topic, err)
	}
	return nil
}

// Discard closes a parked message for good: it counts as completed, and no delivery of it
// runs the handler. [ErrNotFound] is returned for a message that is not parked.
func (s *Store) Discard(ctx context.Context, id int64, by Operator) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	err = s.write(ctx, func(tx *sqlx.Tx) error {
		closed, err := affected(tx.ExecContext(ctx, s.dialect.CloseClaim, resultDiscarded, row.Consumer, row.MessageID))
		if err != nil {
			return err
		}
		deleted, err := affected(tx.ExecContext(ctx, s.dialect.DeleteMessage, row.Consumer, row.MessageID, Parked))
		if err != nil {
			return err
		}
		if closed != 1 || deleted != 1 {
			return ErrNotFound
		}
		return s.audit(ctx, tx, by, "discard", row)
	})
	if err != nil {
		return fmt.Errorf("inbox: discard message %d: %w", id, explain(err))
	}
	return nil
}

func (s *Store) find(ctx context.Context, id int64) (messageRow, error) {
	var row messageRow
	err := sqlx.GetContext(ctx, s.reader(ctx), &row, s.dialect.SelectMessage, id, []byte(s.config.Namespace))
	if errors.Is(err, sql.ErrNoRows) {
		return row, fmt.Errorf("message %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return row, fmt.Errorf("inbox: find message %d: %w", id, explain(err))
	}
	return row, nil
}

func (s *Store) audit(ctx context.Context, tx *sqlx.Tx, by Operator, action string, row messageRow) error {
	detail := fmt.Sprintf("row %d, uuid %q, topic %q, was %s: %s", row.ID, row.UUID, row.Topic, row.Status, row.Reason)
	ids := [][]byte{row.MessageID}
	if row.Original != nil { // a collision is part of two stories
		ids = append(ids, row.Original)
	}
	for _, id := range ids {
		_, err := tx.ExecContext(ctx, s.dialect.InsertAudit,
			[]byte(by.Name), []byte(action), []byte(by.Reason), row.Consumer, id, []byte(detail))
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	return nil
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

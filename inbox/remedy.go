package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
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

// Retry has a message handled that is parked or failed; one that waits for its next attempt
// is tried at once. Its attempts start anew. A collision is then treated as the distinct
// message it is.
//
// Where a queue (pubsub.Durable) of this or another process serves the consumer, the message
// is made due there, and to is not used. Otherwise it is sent to its topic by to, with its
// UUID, metadata and payload, and the delivery runs the handler; where publishing fails the
// message stays to be tried again: call Retry again. [ErrNotServed] is returned where there
// is neither, [ErrNotFound] for a message in another state.
func (s *Store) Retry(ctx context.Context, id int64, by Operator, to message.Publisher) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if m, err := s.message(ctx, row); err == nil && unopenable(m.Unreadable) {
		return row.explain("retry", m.Unreadable)
	}
	served, err := s.served(ctx, row)
	switch {
	case err != nil:
	case served:
		err = s.db.Write(ctx, func(tx *sqlx.Tx) error { return s.makeDue(ctx, tx, by, row) })
		s.wakeQueue(row.consumer())
	default:
		err = s.sendBack(ctx, row, by, to)
	}
	if err == nil {
		s.sayDecided(by, "retry", row.fields())
	}
	return row.explain("retry", err)
}

// explain says which message the error of an operator's action is about.
func (r messageRow) explain(action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: %s message %d of consumer %q: %w", action, r.ID, r.Name, database.Explain(err))
}

func (r messageRow) consumer() consumerName { return consumerName{string(r.Name), r.Epoch} }

// retryable reports whether an operator may have the message tried again.
func (s Status) retryable() bool { return s.stuck() || s == FailedRetryable }

// remediable returns why an operator cannot change the message, nil if it is possible.
func (r messageRow) remediable() error {
	if !r.Status.retryable() {
		return fmt.Errorf("it is %s: %w", r.Status, ErrNotFound)
	}
	if r.LeaseToken != 0 {
		return fmt.Errorf("a process has it, and is about to try it: %w", ErrNotFound)
	}
	return nil
}

// served reports whether a queue delivers what is stored for the consumer of row.
func (s *Store) served(ctx context.Context, row messageRow) (bool, error) {
	c, err := s.consumerRow(ctx, string(row.Name), row.Epoch)
	return c.Served, err
}

// retryAction is what the audit table calls a message that an operator had tried again.
const retryAction = "retry"

// makeDue gives the message back to its queue, if it is still in the state it was seen in.
func (s *Store) makeDue(ctx context.Context, tx *sqlx.Tx, by Operator, row messageRow) error {
	return s.makeDueAs(ctx, tx, by, retryAction, row)
}

func (s *Store) makeDueAs(ctx context.Context, tx *sqlx.Tx, by Operator, action string, row messageRow) error {
	if err := row.remediable(); err != nil {
		return err
	}
	moved, err := database.Affected(tx.ExecContext(ctx, s.dialect.Remedy.RetryMessage,
		[]byte("tried again by "+by.Name), row.Consumer, row.MessageID, row.Status))
	if err == nil && moved != 1 {
		err = fmt.Errorf("it is not %s any more: %w", row.Status, ErrNotFound)
	}
	if err != nil {
		return err
	}
	return s.audit(ctx, tx, by, action, row)
}

// sendBack sends the message to where it came from.
func (s *Store) sendBack(ctx context.Context, row messageRow, by Operator, to message.Publisher) error {
	if err := row.remediable(); err != nil {
		return err
	}
	if to == nil {
		return ErrNotServed
	}
	if _, live := s.db.Live(ctx); live {
		return errors.New("not in a handler's transaction: the message would arrive before its commit")
	}
	if keycode.IsKeyless(row.MessageID) {
		return errors.New("it has no key, and nothing would find it under the one it may have now: " +
			"put pubsub.Durable before its handler, or discard it and publish it by hand")
	}
	if strings.HasPrefix(string(row.KeySource), "position") {
		return errors.New("it is known by its place in a log, and would get another one: " +
			"put pubsub.Durable before its handler, or discard it and publish it by hand")
	}
	m, err := s.message(ctx, row)
	if err == nil {
		err = m.Unreadable
	}
	if err != nil {
		return err
	}
	if m.Topic == "" {
		return errors.New("it came without a router, so its topic is not known: " +
			"put pubsub.Durable before its handler, or discard it and publish it by hand")
	}
	if err := s.db.Write(ctx, func(tx *sqlx.Tx) error { return s.makeDue(ctx, tx, by, row) }); err != nil {
		return err
	}
	msg := message.NewMessage(m.UUID, m.Payload)
	msg.Metadata = m.Metadata
	if err := to.Publish(m.Topic, msg); err != nil {
		return fmt.Errorf("publish to %q: %w", m.Topic, err)
	}
	return nil
}

// Discard closes a message that is parked, or failed terminally, for good: it counts as
// completed, and no delivery of it runs the handler. What a version gate holds behind it stays held
// until [Store.SetVersion]; the log says so. [ErrNotFound] is returned for a message that is in another state.
func (s *Store) Discard(ctx context.Context, id int64, by Operator) error {
	if err := by.validate(); err != nil {
		return err
	}
	row, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, func(tx *sqlx.Tx) error { return s.discard(ctx, tx, by, row) })
	if err == nil {
		s.sayDecided(by, "discard", row.fields())
		s.sayHeldBehind(ctx, row)
	}
	return row.explain("discard", err)
}

func (s *Store) discard(ctx context.Context, tx *sqlx.Tx, by Operator, row messageRow) error {
	if !row.Status.stuck() {
		return fmt.Errorf("it is %s: %w", row.Status, ErrNotFound)
	}
	closed, err := database.Affected(tx.ExecContext(ctx, s.dialect.CloseClaim, resultDiscarded, row.Consumer, row.MessageID))
	if err != nil {
		return err
	}
	deleted, err := database.Affected(tx.ExecContext(ctx, s.dialect.DeleteMessage, row.Consumer, row.MessageID, row.Status))
	if err != nil {
		return err
	}
	if closed != 1 || deleted != 1 {
		return fmt.Errorf("it is not %s any more: %w", row.Status, ErrNotFound)
	}
	return s.audit(ctx, tx, by, "discard", row)
}

func (s *Store) find(ctx context.Context, id int64) (messageRow, error) {
	return s.findIn(ctx, s.db.Reader(ctx), id)
}

func (s *Store) findIn(ctx context.Context, db sqlx.QueryerContext, id int64) (messageRow, error) {
	var row messageRow
	err := sqlx.GetContext(ctx, db, &row, s.dialect.SelectMessage, id, []byte(s.config.Namespace))
	if errors.Is(err, sql.ErrNoRows) {
		return row, fmt.Errorf("message %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return row, fmt.Errorf("inbox: find message %d: %w", id, database.Explain(err))
	}
	return row, nil
}

func (s *Store) audit(ctx context.Context, tx *sqlx.Tx, by Operator, action string, row messageRow, more ...string) error {
	detail := fmt.Sprintf("row %d, uuid %q, topic %q, was %s: %s%s",
		row.ID, row.UUID, row.Topic, row.Status, row.Reason, strings.Join(more, ""))
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

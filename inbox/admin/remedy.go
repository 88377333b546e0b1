package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// Retry has a parked or failed message handled: a message that waits for its next attempt is
// tried at once. Its attempts start anew, and a collision is handled as a message of its own.
//
// If a queue (pubsub.Durable) of any process serves the consumer, Retry makes the message due
// there and ignores to. Otherwise to publishes the message to its topic, with its UUID, metadata
// and payload, and the delivery runs the handler. If publishing fails, the message waits as before,
// unless a copy was tried meanwhile: call Retry again. Retry returns [inbox.ErrNotServed] if there is
// neither a queue nor a publisher, [inbox.ErrNotFound] if no such message is open, and [inbox.ErrWrongState] if its
// state does not allow a retry.
func (a *Admin) Retry(ctx context.Context, id int64, by Operator, to message.Publisher) error {
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.find(ctx, id)
	if err != nil {
		return err
	}
	if m, err := a.whole(ctx, row); err == nil && a.inbox.Unopenable(m.Unreadable) {
		return explain(&row, "retry", m.Unreadable)
	}
	served, err := a.rows.Served(ctx, &row)
	switch {
	case err != nil:
	case served:
		err = a.rows.Write(ctx, func(tx *sqlx.Tx) error { return a.rows.MakeDue(ctx, tx, by, stored.Retry, &row) })
		a.inbox.Wake(row.Of())
	default:
		err = a.sendBackWhole(ctx, row, by, to, func(ctx context.Context, tx *sqlx.Tx) error { return a.rows.Audit(ctx, tx, by, stored.Retry, &row) })
	}
	if err == nil {
		a.inbox.Decided(by, "retry", row.Fields())
	}
	return explain(&row, "retry", err)
}

// explain adds to an error which message it is about.
func explain(row *stored.Message, action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: %s message %d of consumer %q: %w", action, row.ID, row.Name, database.Explain(err))
}

// sendBack publishes the message to its topic, once due has made it due and recorded that.
func (a *Admin) sendBack(ctx context.Context, row stored.Message, to message.Publisher, due func(*sqlx.Tx) error) error {
	if err := row.Remediable(); err != nil {
		return err
	}
	if to == nil {
		return &unsendableError{inbox.ErrNotServed}
	}
	if _, live := a.rows.Live(ctx); live {
		return errors.New("not in a handler's transaction: the message would arrive before its commit")
	}
	if keycode.IsKeyless(row.MessageID) {
		return unsendable("it has no key, so its copy would not be recognised")
	}
	key, err := inbox.Internals{}.ParseKey(string(row.KeySource))
	if err != nil {
		return &unsendableError{err}
	}
	if key.ByPlace() {
		return unsendable("its key is its place in a log, and it would get another place")
	}
	m, err := a.whole(ctx, row)
	if err != nil {
		return err
	}
	if m.Unreadable != nil {
		return &unsendableError{m.Unreadable}
	}
	if m.Topic == "" {
		return unsendable("it came without a router, so its topic is not known")
	}
	if err := a.rows.Write(ctx, due); err != nil {
		return err
	}
	msg := message.NewMessage(m.UUID, m.Payload)
	msg.Metadata = m.Metadata
	if err := to.Publish(m.Topic, msg); err != nil {
		return &unsentError{m.Topic, err}
	}
	return nil
}

// An unsendableError says why a message cannot be sent back, which says nothing about others.
type unsendableError struct{ error }

func (e *unsendableError) Unwrap() error { return e.error }

func unsendable(why string) error {
	return &unsendableError{errors.New(why + ": put pubsub.Durable before its handler, or discard it and publish it by hand")}
}

// An unsentError says that the publisher refused a message that was due by then.
type unsentError struct {
	topic string
	cause error
}

func (e *unsentError) Error() string { return fmt.Sprintf("publish to %q: %v", e.topic, e.cause) }
func (e *unsentError) Unwrap() error { return e.cause }

// Discard closes a message that is parked, failed terminally, or waits for its next attempt: it counts as
// completed, and no delivery of it runs the handler. In a handler without middleware.Inbox this needs a pubsub.Durable
// with StoreFirst: with StoreOnFailure, a copy from the source runs such a handler. Messages that a
// version gate holds behind it stay held until [Admin.SetVersion]; the log says so. Discard returns
// [inbox.ErrNotFound] if no such message is open, and [inbox.ErrWrongState] if it is in another state, or a process
// has leased it.
func (a *Admin) Discard(ctx context.Context, id int64, by Operator) error {
	if err := by.Validate(); err != nil {
		return err
	}
	row, err := a.find(ctx, id)
	if err != nil {
		return err
	}
	err = a.rows.Write(ctx, func(tx *sqlx.Tx) error {
		if err := a.discard(ctx, tx, row); err != nil {
			return err
		}
		return a.rows.Audit(ctx, tx, by, discardAction, &row)
	})
	if err == nil {
		a.inbox.Decided(by, "discard", row.Fields())
		a.sayHeldBehind(ctx, row)
	}
	return explain(&row, "discard", err)
}

// discardAction is the action's name in the audit table.
const discardAction = "discard"

// discard does not record the decision.
func (a *Admin) discard(ctx context.Context, tx *sqlx.Tx, row stored.Message) error {
	if err := row.Remediable(); err != nil {
		return err
	}
	d := a.rows.Dialect
	closed, err := database.Affected(tx.ExecContext(ctx, d.CloseClaim, stored.ResultDiscarded, row.Consumer, row.MessageID))
	if err != nil {
		return err
	}
	if closed == 0 { // with inbox.CollisionFail, the claim is of another message, which was handled and perhaps forgotten since
		if _, err := tx.ExecContext(ctx, d.OpenClaim, row.Consumer, row.MessageID, row.Hash, 1); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, d.CloseClaim, stored.ResultDiscarded, row.Consumer, row.MessageID); err != nil {
			return err
		}
	}
	deleted, err := database.Affected(tx.ExecContext(ctx, d.Remedy.DiscardMessage, row.Consumer, row.MessageID, row.Status))
	if err == nil && deleted != 1 {
		err = a.rows.Conflict(ctx, tx, &row, (*stored.Message).Remediable)
	}
	return err
}

// find returns an open message.
func (a *Admin) find(ctx context.Context, id int64) (stored.Message, error) {
	return a.rows.Message(ctx, a.rows.Reader(ctx), id)
}

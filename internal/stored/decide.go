package stored

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
)

var (
	// ErrNotFound says that there is no such row.
	ErrNotFound = errors.New("not found")

	// ErrWrongState says that there is such a row, but its state does not allow the operation.
	ErrWrongState = errors.New("wrong state")
)

// IsConflict reports whether err says that a row is gone, or in a state that does not allow the operation.
func IsConflict(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrWrongState) }

// Operator is a person who decides, and the reason. The audit table keeps both.
type Operator struct {
	Name   string
	Reason string
}

// Validate returns an error if Name or Reason is missing.
func (o Operator) Validate() error {
	if o.Name == "" || o.Reason == "" {
		return errors.New("inbox: an operator's call needs a Name and a Reason, which are kept")
	}
	return nil
}

// Actions in the audit table.
const (
	Retry  = "retry"  // an operator retried a message
	Replay = "replay" // a replay retried it
)

// Audit records a decision about a message.
func (r *Rows) Audit(ctx context.Context, tx *sqlx.Tx, by Operator, action string, row *Message, more ...string) error {
	detail := row.detail() + strings.Join(more, "")
	ids := [][]byte{row.MessageID}
	if row.Original != nil { // a collision belongs to two stories
		ids = append(ids, row.Original)
	}
	for _, id := range ids {
		if err := r.AuditOf(ctx, tx, by, action, row.Consumer, id, detail); err != nil {
			return err
		}
	}
	return nil
}

// detail describes the message for the audit table.
func (m *Message) detail() string {
	return fmt.Sprintf("row %d, uuid %q, topic %q, was %s: %s", m.ID, m.UUID, m.Topic, m.Status, m.Reason)
}

// AuditOf records a decision about a key of a consumer, or with an empty key about the whole
// consumer.
func (r *Rows) AuditOf(
	ctx context.Context, tx *sqlx.Tx, by Operator, action string, consumer int32, id []byte, detail string,
) error {
	_, err := tx.ExecContext(ctx, r.Dialect.InsertAudit,
		[]byte(by.Name), []byte(action), []byte(by.Reason), consumer, id, []byte(detail))
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// Remediable returns [ErrWrongState] unless an operator can retry or discard the message, and replace its payload.
func (m *Message) Remediable() error {
	if !m.Status.Retryable() {
		return fmt.Errorf("it is %s, and only %s, %s and %s messages can be tried again, corrected or discarded: %w",
			m.Status, Parked, FailedTerminal, FailedRetryable, ErrWrongState)
	}
	if m.LeaseToken != 0 {
		return fmt.Errorf("it is %s, and a process has leased it to try it now: %w", m.Status, ErrWrongState)
	}
	return nil
}

// Conflict says why a statement did not find the message in the state that seen has: [ErrNotFound]
// or [ErrWrongState]. If allows refuses the message as it is now, Conflict returns that error.
func (r *Rows) Conflict(ctx context.Context, tx *sqlx.Tx, seen *Message, allows func(*Message) error) error {
	now, err := r.Message(ctx, tx, seen.ID)
	if err == nil {
		err = allows(&now)
	}
	if err == nil {
		err = fmt.Errorf("somebody changed it meanwhile, and it is %s now: look at it again: %w", now.Status, ErrWrongState)
	}
	return err
}

// MakeDue makes the message due in its queue if its state has not changed since it was read, and
// records the decision. With [Retry] the consumer handles it even if it refuses replayed messages.
func (r *Rows) MakeDue(ctx context.Context, tx *sqlx.Tx, by Operator, action string, row *Message) error {
	if err := r.SetDue(ctx, tx, by, action, row); err != nil {
		return err
	}
	return r.Audit(ctx, tx, by, action, row)
}

// SetDue is MakeDue for callers that record the decision themselves. After an error the caller rolls back.
func (r *Rows) SetDue(ctx context.Context, tx *sqlx.Tx, by Operator, action string, rows ...*Message) error {
	for _, row := range rows {
		if err := row.Remediable(); err != nil {
			return err
		}
	}
	allowed := 0
	if action == Retry {
		allowed = 1
	}
	byState := func(a, b *Message) int { // the statements of each call have one order
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Status, b.Status))
	}
	rows = slices.SortedStableFunc(slices.Values(rows), byState)
	for len(rows) > 0 {
		first, keys := rows[0], [][]byte(nil)
		for len(rows) > 0 && byState(rows[0], first) == 0 {
			keys, rows = append(keys, rows[0].MessageID), rows[1:]
		}
		query, args, err := r.Dialect.In(r.Dialect.Remedy.RetryMessages, triedBy(by), allowed, first.Consumer, keys, first.Status)
		if err != nil {
			return err
		}
		moved, err := database.Affected(tx.ExecContext(ctx, query, args...))
		if err == nil && moved != int64(len(keys)) {
			err = r.Conflict(ctx, tx, first, (*Message).Remediable)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// triedBy is the reason of a message that an operator has tried again.
func triedBy(by Operator) []byte { return []byte("tried again by " + by.Name) }

// UndoRetry puts a message whose retry could not be sent back as it was, unless a copy was tried or another operator
// has retried it meanwhile, and records that.
func (r *Rows) UndoRetry(ctx context.Context, tx *sqlx.Tx, by Operator, row *Message) error {
	undone, err := database.Affected(tx.ExecContext(ctx, r.Dialect.Remedy.UndoRetry,
		row.Status, row.Attempts, row.Reason, row.ReasonCode, row.DueAt, row.Consumer, row.MessageID, triedBy(by)))
	if err != nil || undone == 0 {
		return err
	}
	return r.Audit(ctx, tx, by, "undo retry", row)
}

// Served reports whether a queue serves the consumer of row.
func (r *Rows) Served(ctx context.Context, row *Message) (bool, error) {
	c, err := r.Consumer(ctx, string(row.Name), row.Epoch)
	return c.Served, err
}

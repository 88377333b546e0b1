package stored

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Bulk is an operator's action on many messages. The audit table has one entry of it for each
// consumer, which counts the messages, and a row for each message.
type Bulk struct {
	ID     int64 // what its entries have in common
	By     Operator
	Action string
	Which  string // which messages it is to take
}

// BulkID returns the number of an action, which audit has if it goes on. If audit is 0, BulkID sets it.
func BulkID(audit *int64) int64 {
	if *audit == 0 {
		*audit = rand.Int64N(math.MaxInt64) + 1 //nolint:gosec // tells actions apart, keeps no secret
	}
	return *audit
}

// Changed is a message that an action on many has changed.
type Changed struct {
	Consumer  int32 // 0 for the outbox
	MessageID []byte
	Original  []byte // of a collision
	Detail    string
}

// AuditBulk records what b has done to messages in tx.
func (r *Rows) AuditBulk(ctx context.Context, tx *sqlx.Tx, b Bulk, messages ...Message) error {
	all := make([]Changed, 0, len(messages))
	for i := range messages {
		m := &messages[i]
		all = append(all, Changed{m.Consumer, m.MessageID, m.Original, m.detail()})
	}
	return b.Audit(ctx, tx, r.Dialect, all...)
}

// Audit records what b has done to messages in tx.
func (b Bulk) Audit(ctx context.Context, tx *sqlx.Tx, d *dialect.Dialect, messages ...Changed) error {
	order := func(a, b Changed) int { return cmp.Compare(a.Consumer, b.Consumer) } // so that two calls cannot deadlock
	slices.SortStableFunc(messages, order)
	for len(messages) > 0 {
		n := slices.IndexFunc(messages, func(m Changed) bool { return m.Consumer != messages[0].Consumer })
		if n < 0 {
			n = len(messages)
		}
		if err := b.audit(ctx, tx, &d.Remedy, messages[:n]); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		messages = messages[n:]
	}
	return nil
}

// audit records messages of one consumer. The statement that counts them locks the entry, so the numbers of
// messages are the caller's until tx ends.
func (b Bulk) audit(ctx context.Context, tx *sqlx.Tx, d *dialect.Remedy, messages []Changed) error {
	consumer := messages[0].Consumer
	by := []any{[]byte(b.By.Name), []byte(b.Action), []byte(b.By.Reason)}
	counted, err := database.Affected(tx.ExecContext(ctx, d.CountBulk,
		append([]any{len(messages), b.ID, consumer, []byte(b.Which)}, by...)...))
	if err != nil {
		return err
	}
	var entry struct {
		ID       int64 `db:"id"`
		Messages int64 `db:"messages"`
	}
	err = sqlx.GetContext(ctx, tx, &entry, d.SelectBulk, b.ID, consumer)
	switch {
	case counted == 1 || err != nil && !errors.Is(err, sql.ErrNoRows):
	case err == nil:
		return fmt.Errorf("entry %d of the action is of another operator, or has another reason or filter: begin a new one", entry.ID)
	default:
		if _, err := tx.ExecContext(ctx, d.InsertBulk,
			append([]any{consumer, []byte{}, []byte(b.Which), b.ID, len(messages)}, by...)...); err != nil {
			return err
		}
		err = sqlx.GetContext(ctx, tx, &entry, d.SelectBulk, b.ID, consumer)
	}
	if err != nil {
		return err
	}
	args := make([]any, 0, 5*len(messages))
	for i, m := range messages {
		args = append(args, entry.ID, entry.Messages-int64(len(messages)-i-1), m.MessageID, m.Original, []byte(m.Detail))
	}
	_, err = tx.ExecContext(ctx, dialect.InsertMany(d.InsertBulkMessage, len(messages)), args...)
	return err
}

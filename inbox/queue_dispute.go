package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// errDisputed has messages stored anew, in a transaction that first opens the claim of a disputed key.
var errDisputed = errors.New("another payload waits under the key, which nobody has claimed")

// openDisputed opens the claims of disputed keys for what is stored under them, before any row is
// touched: handlers lock in this order, too, and one that has a claim is waited for.
func (q *Queue) openDisputed(ctx context.Context, tx *sqlx.Tx, consumer int32, all []*arrival) error {
	disputed := slices.DeleteFunc(slices.Clone(all), func(a *arrival) bool { return !a.disputed })
	slices.SortStableFunc(disputed, func(a, b *arrival) int { return bytes.Compare(a.id, b.id) })
	for _, a := range disputed {
		if _, err := tx.ExecContext(ctx, q.store.dialect.OpenClaim, consumer, a.id, a.theirs, 1); err != nil {
			return fmt.Errorf("message %q: open the claim of its key: %w", a.msg.UUID, err)
		}
	}
	return nil
}

// keyOfAnother reports whether the key of a is that of the message with another payload that is
// stored under it. If not, a is a copy of what was handled, and what is stored came later. What a
// produced then goes out past the table, if it is not known to have done so.
//
// A message that is stored as it comes has no claim: one that goes past the table may still take the
// key. So before a is parked the claim is opened, for what is stored. That waits for one who has just
// claimed the key. Where everything is stored first nobody goes past the table.
func (q *Queue) keyOfAnother(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival, kept int64) (theirs bool, err error) {
	var row lookup
	err = row.scan(tx.QueryRowContext(ctx, q.store.dialect.Lookup, consumer, a.id))
	switch {
	case errors.Is(err, sql.ErrNoRows) && q.config.StoreFirst:
		return true, nil
	case errors.Is(err, sql.ErrNoRows):
		a.disputed, a.theirs = true, kept
		return false, errDisputed
	case err != nil:
		return false, fmt.Errorf("look up the claim: %w", err)
	}
	if row.Result == stored.ResultOpen || row.other(a.hash) {
		return true, nil
	}
	a.past = row.Outcome != nil
	return false, nil
}

// errInTheWay says that a copy of what was handled cannot be stored, since the row of another message
// stands under its key. Past the table it could have been published.
var errInTheWay = errors.New("the message was handled, and what it produced could not be published; " +
	"it cannot be stored while another payload waits under its key, so its source has to bring it again")

// parkTwin parks a, which has the key of another message but a payload of its own.
func (q *Queue) parkTwin(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) (parked *arrival, err error) {
	other := *a
	other.original, other.id = a.id, keycode.Derive(a.id, a.print)
	other.status, other.delay, other.orderKey = stored.Parked, stored.Never, nil
	other.why = why{ReasonCollision, "same key as message " + a.key + ", other payload"}
	if _, err := tx.ExecContext(ctx, q.store.dialect.OpenClaim, consumer, other.id, other.hash, 1); err != nil {
		return nil, err
	}
	var kept int64
	err = tx.GetContext(ctx, &kept, q.store.dialect.Queue.SelectStored, consumer, other.id)
	if !errors.Is(err, sql.ErrNoRows) {
		return &other, err // it came before
	}
	if err = q.insert(ctx, tx, consumer, &other); err == nil {
		err = q.store.note(ctx, tx, consumer, other.id, putAside)
	}
	return &other, err
}

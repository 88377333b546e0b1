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

// errDisputed makes putTogether store the messages again, in a transaction that first opens the
// claims of disputed keys.
var errDisputed = errors.New("another payload waits under the key, which nobody has claimed")

// openDisputed opens the claims of disputed keys for the messages stored under them. It does so
// before it touches any row, because handlers lock in this order too, and waits for a handler that
// has a claim.
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

// keyOfAnother reports whether the key of a belongs to the message that is stored under it, which
// has another payload. If not, a is a copy of a message that was handled, and the stored message
// arrived later. If the outcome of a may be unpublished, a.past has the caller deliver a past the
// table.
//
// A message has no claim when it is stored on arrival, so a delivery past the table may still claim
// the key. Before a is parked, the claim must therefore be opened for the stored message, which
// waits for a delivery that has just claimed the key. With StoreFirst no delivery goes past the
// table.
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

// errInTheWay says that a copy of a handled message cannot be stored, because the row of another
// message is under its key. Past the table, its outcome could have been published.
var errInTheWay = errors.New("the message was handled, but its outcome could not be published; " +
	"it cannot be stored while another payload waits under its key, so its source must redeliver it")

// parkTwin parks a, which collides with another message, under an id of its own.
func (q *Queue) parkTwin(ctx context.Context, tx *sqlx.Tx, consumer int32, a *arrival) (parked *arrival, err error) {
	other := *a
	other.original, other.id = a.id, keycode.Derive(a.id, a.print)
	other.status, other.delay, other.orderKey = stored.Parked, stored.Never, nil
	other.why = why{ReasonCollision, "same key as message " + a.key + ", other payload"}
	if _, err := tx.ExecContext(ctx, q.store.dialect.OpenClaim, consumer, other.id, other.hash, 1); err != nil {
		return nil, err
	}
	_, err = q.store.kept(ctx, tx, consumer, other.id)
	if !errors.Is(err, sql.ErrNoRows) {
		return &other, err // without an error, it is stored already
	}
	if err = q.insert(ctx, tx, consumer, &other); err == nil {
		err = q.store.note(ctx, tx, consumer, other.id, putAside, nil)
	}
	return &other, err
}

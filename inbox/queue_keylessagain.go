package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// nameKeyless looks again for the keys of leased messages that were stored without one. A message
// that has a key now gets its id; one that still has none waits for an operator again. nameKeyless
// returns the other messages.
//
// If a key cannot be determined now, nameKeyless puts off its message and, without trying, the
// keyless messages after it: meanwhile nothing extends the leases of the others.
func (q *Queue) nameKeyless(ctx context.Context, leased []*Leased) (rest []*Leased, err error) {
	began, notNow := time.Now(), error(nil)
	for _, l := range leased {
		if !keycode.IsKeyless(l.row.MessageID) {
			rest = append(rest, l)
			continue
		}
		if notNow == nil && time.Since(began) > q.config.Lease/3 {
			notNow = errors.New("finding the keys of other messages took too long")
		}
		if notNow != nil {
			err = l.later(ctx, notNow)
		} else {
			notNow, err = l.findKey(ctx)
		}
		if err != nil && !errors.Is(err, ErrLost) {
			return nil, err
		}
	}
	return rest, nil
}

// later puts off a message whose key cannot be determined now.
func (l *Leased) later(ctx context.Context, cause error) error {
	attempts := l.row.Attempts
	if l.suspect { // charged with an attempt that is not made
		attempts--
	}
	notNow := why{ReasonNotTried, "its key could not be determined"}
	return l.move(ctx, fate{stored.FailedRetryable, attempts, l.queue.config.MinBackoff, notNow, lastErrorOf(cause)}, unnoted)
}

// findKey looks for the key of l and moves l accordingly. If that is impossible now, it returns the
// reason as notNow.
func (l *Leased) findKey(ctx context.Context) (notNow, err error) {
	q := l.queue
	var a *arrival
	msg, err := l.Message(ctx)
	if err == nil {
		a, err = q.arrival(string(l.row.Topic), msg)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return err, l.later(ctx, err)
	}
	if a.keyless {
		return nil, l.move(ctx, fate{stored.FailedTerminal, l.row.Attempts, stored.Never, a.why, l.last()}, putAside)
	}
	var parked *arrival
	var known bool
	bound, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	err = q.write(bound, func(bound context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
		parked, known, err = l.name(bound, tx, a, tell)
		return err
	})
	if errors.Is(err, ErrLost) { // maybe only of the row that stands for l, which has changed
		return nil, l.later(ctx, err)
	}
	if err != nil {
		return nil, q.store.db.Noticed(err)
	}
	fields := q.event(a, "").fields().Add(watermill.LogFields{"was": keycode.String(l.row.MessageID)})
	switch {
	case parked != nil:
		q.observeCollision(ctx, parked)
	case known:
		q.store.log.Info("inbox: a message that had no key has one now, and is a copy of another message", fields)
	default:
		q.store.log.Info("inbox: a message that had no key has one now, and is tried again", fields)
		q.bell.Ring()
	}
	return nil, nil
}

// name gives the row of l the id of a, which is the same message with its key. If another message
// has that key, name parks l as a collision. If a copy has it, name closes the row and reports that
// l is known.
func (l *Leased) name(
	ctx context.Context, tx *sqlx.Tx, a *arrival, tell tellParked,
) (parked *arrival, known bool, err error) {
	row, err := l.openFor(ctx, tx, a)
	if err != nil {
		return nil, false, err
	}
	next, delay := *a, time.Duration(0)
	next.status = stored.FailedRetryable
	next.why = why{ReasonNoKey, "had no key, and was kept as " + keycode.String(l.row.MessageID)}
	if row.other(a.hash) {
		next.original, next.id = a.id, keycode.Derive(a.id, a.print)
		next.status, delay = stored.Parked, stored.Never
		next.why = why{ReasonCollision, "same key as message " + a.key + ", other payload"}
		if row, err = l.openFor(ctx, tx, &next); err != nil {
			return nil, false, err
		}
		parked = &next
	}
	if row.Result != stored.ResultOpen || row.OpenStatus.Valid {
		joined, err := l.queue.store.join(ctx, tx, l.row.Consumer, next.id, stored.Status(row.OpenStatus.Int16))
		if err == nil && !joined {
			err = ErrLost // the row that stands for l has changed
		}
		if err != nil {
			return nil, false, err
		}
		return nil, true, l.drop(ctx, tx, true)
	}
	named, err := database.Affected(tx.ExecContext(ctx, l.queue.store.dialect.Queue.NameLeased, next.id, next.hash, next.original,
		next.status, noteText(next.text), delay.Microseconds(), l.row.Consumer, l.row.MessageID, l.token))
	if err == nil && named != 1 {
		err = ErrLost
	}
	if err == nil {
		err = l.queue.store.note(ctx, tx, l.row.Consumer, next.id, putAside, nil)
	}
	if err == nil {
		err = l.drop(ctx, tx, false)
	}
	if err == nil && parked != nil {
		err = tell(a.msg.Copy(), parked.text)
	}
	return parked, false, err
}

// openFor opens a claim for the key of a, unless there is one, and returns the state of the key.
func (l *Leased) openFor(ctx context.Context, tx *sqlx.Tx, a *arrival) (row lookup, err error) {
	d := l.queue.store.dialect
	if _, err := tx.ExecContext(ctx, d.OpenClaim, l.row.Consumer, a.id, a.hash, 1); err != nil {
		return row, fmt.Errorf("claim the key: %w", err)
	}
	return row, row.scan(tx.QueryRowContext(ctx, d.Lookup, l.row.Consumer, a.id))
}

// drop deletes the claim and the history of the id that l had without a key, and its row too if row
// is set.
func (l *Leased) drop(ctx context.Context, tx *sqlx.Tx, row bool) error {
	d := l.queue.store.dialect
	if row {
		closed, err := database.Affected(tx.ExecContext(ctx, d.Queue.CloseLeased, l.row.Consumer, l.row.MessageID, l.token))
		if err == nil && closed != 1 {
			err = ErrLost
		}
		if err != nil {
			return err
		}
	}
	for _, statement := range []string{d.History.DeleteHistory, d.DeleteClaims} {
		query, args, err := d.In(statement, l.row.Consumer, [][]byte{l.row.MessageID})
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

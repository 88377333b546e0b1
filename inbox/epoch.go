package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
)

// epochLook is how often a queue looks for messages that processes of an older epoch, which
// may still run, have left.
const epochLook = 10 * time.Second

// olderEpochs is what a queue knows of the epochs before its own.
type olderEpochs struct {
	looked time.Time
	left   bool // messages that somebody else still has
}

// adopt moves what is open in older epochs to this queue's, and reports whether some could
// not be moved yet.
func (q *Queue) adopt(ctx context.Context, consumer int32) (left bool, err error) {
	q.adopting.Lock()
	defer q.adopting.Unlock()
	o := &q.older
	if q.name.epoch == 0 || !o.left && time.Since(o.looked) < epochLook {
		return false, nil
	}
	var ids []int32
	err = q.store.db.SelectContext(ctx, &ids, q.store.dialect.Queue.SelectOlderEpochs,
		[]byte(q.store.config.Namespace), []byte(q.name.name), q.name.epoch)
	if err != nil {
		return false, q.store.noticeLoss(err)
	}
	o.left = false
	for _, from := range ids {
		if err := q.adoptFrom(ctx, from, consumer); err != nil {
			return false, err
		}
		var open bool
		if err := q.store.db.GetContext(ctx, &open, q.store.dialect.Queue.SelectOpen, from); err != nil {
			return false, q.store.noticeLoss(err)
		}
		o.left = o.left || open
	}
	o.looked = time.Now()
	return o.left, nil
}

// adoptFrom moves all that nobody has of one older epoch.
func (q *Queue) adoptFrom(ctx context.Context, from, to int32) error {
	const atOnce = 100
	opening, cancel := context.WithTimeout(ctx, afterwards) // in transactions, so not for long
	defer cancel()
	moved, superseded := 0, 0
	for n := atOnce; n == atOnce; {
		err := q.store.write(ctx, func(tx *sqlx.Tx) error {
			n, superseded = 0, 0
			if q.store.dialect.OneWriter { // whose transactions must begin with a write
				if _, err := tx.ExecContext(ctx, q.store.dialect.LockConsumer, to); err != nil {
					return err
				}
			}
			var rows []messageRow
			if err := tx.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectAdoptable, from, atOnce); err != nil {
				return err
			}
			n = len(rows)
			for _, row := range rows {
				known, err := q.adoptOne(ctx, tx, row, to, q.rekeyed(opening, row))
				if err != nil {
					return fmt.Errorf("message %q: %w", row.UUID, err)
				}
				if known {
					superseded++
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("move messages from an older epoch: %w", err)
		}
		moved += n - superseded
		if n > 0 {
			q.store.log.Info("inbox: open messages of an older epoch were moved to the new one", q.fields().Add(watermill.LogFields{
				"count": n - superseded, "superseded": superseded,
			}))
		}
	}
	if moved > 0 {
		q.bell.Ring()
	}
	return nil
}

// adoptOne moves a message, with its claim and what it produced. One whose key the new epoch
// knows already is superseded: the newer one counts.
func (q *Queue) adoptOne(
	ctx context.Context, tx *sqlx.Tx, row messageRow, to int32, id []byte,
) (superseded bool, err error) {
	d := q.store.dialect
	known, err := q.knows(ctx, tx, to, id)
	if err != nil {
		return false, err
	}
	if known {
		if _, err := tx.ExecContext(ctx, d.CloseClaim, resultSuperseded, row.Consumer, row.MessageID); err != nil {
			return false, err
		}
		_, err := tx.ExecContext(ctx, d.DeleteMessage, row.Consumer, row.MessageID, row.Status)
		return true, err
	}
	stray, args, err := d.In(d.History.DeleteHistory, to, [][]byte{id}) // of a claim that is gone: it would be in the way
	if err == nil {
		_, err = tx.ExecContext(ctx, stray, args...)
	}
	if err != nil {
		return false, err
	}
	for _, statement := range []string{
		d.Queue.AdoptMessage, d.Queue.AdoptClaim, d.Queue.AdoptOutcome, d.Queue.AdoptResult, d.Queue.AdoptJournal, d.Queue.AdoptHistory,
	} {
		if _, err := tx.ExecContext(ctx, statement, to, id, row.Consumer, row.MessageID); err != nil {
			return false, err
		}
	}
	// A process of the last release may get another copy of what was handled.
	_, err = tx.ExecContext(ctx, d.Queue.KeepClaim, row.Consumer, row.MessageID, to, id)
	return false, err
}

// rekeyed returns the id that a message has in this epoch, for which the key may have been
// changed. A collision keeps the one it was given, and so does what had no key until it is tried again.
func (q *Queue) rekeyed(ctx context.Context, row messageRow) []byte {
	if row.Original != nil || keycode.IsKeyless(row.MessageID) {
		return row.MessageID
	}
	l := newLeased(q, row, 0, false)
	if err := l.open(ctx); err != nil {
		return row.MessageID // a key that is made of the payload stays what it was
	}
	msg, err := l.Message(ctx)
	if err != nil {
		return row.MessageID // nobody can read it, which is said when it is taken
	}
	key, err := q.config.Key.valueFrom(string(row.Topic), msg)
	if err != nil {
		return row.MessageID // such as a position, which only its source knows
	}
	return keycode.Encode(key)
}

// knows reports whether a key has been seen in an epoch.
func (q *Queue) knows(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte) (bool, error) {
	var one int64
	for _, statement := range []string{q.store.dialect.Queue.SelectClaimed, q.store.dialect.Queue.SelectStored} {
		err := tx.GetContext(ctx, &one, statement, consumer, id)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return err == nil, err
		}
	}
	return false, nil
}

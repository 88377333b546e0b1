package inbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
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
	if q.name.Epoch == 0 || !o.left && time.Since(o.looked) < epochLook {
		return false, nil
	}
	var ids []int32
	err = q.store.db.SelectContext(ctx, &ids, q.store.dialect.Queue.SelectOlderEpochs,
		[]byte(q.store.config.Namespace), []byte(q.name.Name), q.name.Epoch)
	if err != nil {
		return false, q.store.db.Noticed(err)
	}
	o.left = false
	for _, from := range ids {
		if err := q.adoptFrom(ctx, from, consumer); err != nil {
			return false, err
		}
		var open bool
		if err := q.store.db.GetContext(ctx, &open, q.store.dialect.Queue.SelectOpen, from); err != nil {
			return false, q.store.db.Noticed(err)
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
	moved := 0
	for n := atOnce; n == atOnce; {
		var superseded int
		var twins []*adoptedTwin
		err := q.write(ctx, func(tx *sqlx.Tx, tell tellParked) error {
			n, superseded, twins = 0, 0, nil
			if q.store.dialect.OneWriter { // whose transactions must begin with a write
				if _, err := tx.ExecContext(ctx, q.store.dialect.LockConsumer, to); err != nil {
					return err
				}
			}
			var rows []stored.Message
			if err := tx.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectAdoptable, from, atOnce); err != nil {
				return err
			}
			n = len(rows)
			for _, row := range rows {
				known, twin, err := q.adoptOne(ctx, tx, row, to, q.rekeyed(opening, row), tell)
				if err != nil {
					return fmt.Errorf("message %q: %w", row.UUID, err)
				}
				if known {
					superseded++
				}
				if twin != nil {
					twins = append(twins, twin)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("move messages from an older epoch: %w", err)
		}
		moved += n - superseded
		for _, twin := range twins {
			q.observeAdoptedTwin(ctx, twin)
		}
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

// adoptOne moves a message, with its claim and what it produced. One that the new epoch knows
// already is superseded: the newer one counts. One whose key is that of another message is no copy.
func (q *Queue) adoptOne(
	ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, as rekeyed, tell tellParked,
) (superseded bool, twin *adoptedTwin, err error) {
	known, err := q.knows(ctx, tx, to, as.id)
	switch {
	case err != nil:
		return false, nil, err
	case known == nil:
		return false, nil, q.moveTo(ctx, tx, row, to, as.id)
	case as.isCopy(known):
		return true, nil, q.supersede(ctx, tx, row)
	}
	return q.adoptTwin(ctx, tx, row, to, as, known, tell)
}

// supersede closes a message of an older epoch, which the new one knows.
func (q *Queue) supersede(ctx context.Context, tx *sqlx.Tx, row stored.Message) error {
	d := q.store.dialect
	if _, err := tx.ExecContext(ctx, d.CloseClaim, stored.ResultSuperseded, row.Consumer, row.MessageID); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, d.DeleteMessage, row.Consumer, row.MessageID, row.Status)
	return err
}

// moveTo moves a message with all that belongs to it. Its new key is not known.
func (q *Queue) moveTo(ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, id []byte) error {
	d := q.store.dialect
	stray, args, err := d.In(d.History.DeleteHistory, to, [][]byte{id}) // of a claim that is gone: it would be in the way
	if err == nil {
		_, err = tx.ExecContext(ctx, stray, args...)
	}
	if err != nil {
		return err
	}
	for _, statement := range []string{
		d.Queue.AdoptMessage, d.Queue.AdoptClaim, d.Queue.AdoptOutcome, d.Queue.AdoptResult, d.Queue.AdoptJournal, d.Queue.AdoptHistory,
	} {
		if _, err := tx.ExecContext(ctx, statement, to, id, row.Consumer, row.MessageID); err != nil {
			return err
		}
	}
	// A process of the last release may get another copy of what was handled.
	_, err = tx.ExecContext(ctx, d.Queue.KeepClaim, row.Consumer, row.MessageID, to, id)
	return err
}

// rekeyed is what a message of an older epoch is known by in this one, for which the key, and what it is
// compared by, may have been changed.
type rekeyed struct {
	id     []byte
	print  [sha256.Size]byte
	hashes []int64          // by which a copy of it may be known; none: all that has the id is a copy
	msg    *message.Message // nil where nobody can read it
}

// isCopy reports whether what is known of the key is known of this message.
func (r rekeyed) isCopy(known *lookup) bool {
	return r.hashes == nil || slices.ContainsFunc(r.hashes, known.of)
}

// rekeyed returns what a message is known by in this epoch. A collision keeps the id that it was given, and
// so does what had no key until it is tried again.
func (q *Queue) rekeyed(ctx context.Context, row stored.Message) rekeyed {
	as := rekeyed{id: row.MessageID}
	if row.Original != nil || keycode.IsKeyless(row.MessageID) {
		return as
	}
	as.hashes = []int64{row.Hash}
	binary.BigEndian.PutUint64(as.print[:], uint64(row.Hash)) //nolint:gosec // the bits matter, not the sign
	l := newLeased(q, row, 0, false)
	if err := l.open(ctx); err != nil {
		return as // a key that is made of the payload stays what it was
	}
	msg, err := l.Message(ctx)
	if err != nil {
		return as // nobody can read it, which is said when it is taken
	}
	as.msg = msg
	payload := []byte(msg.Payload)
	if q.config.Fingerprint != nil {
		payload, err = callFingerprint(q.config.Fingerprint, msg)
	}
	if err == nil {
		as.print = sha256.Sum256(payload)
		as.hashes = append(as.hashes, hashOf(as.print))
	}
	key, err := q.config.Key.valueFrom(string(row.Topic), msg)
	if err == nil { // else it is a position for instance, which only its source knows
		as.id = keycode.Encode(key)
	}
	return as
}

// knows returns what is known of a key in an epoch, nil if nothing is.
func (q *Queue) knows(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte) (*lookup, error) {
	var known lookup
	err := known.scan(tx.QueryRowContext(ctx, q.store.dialect.Lookup, consumer, id))
	if errors.Is(err, sql.ErrNoRows) { // one that is stored as it comes has no claim
		known.OpenStatus = sql.NullInt16{Int16: int16(stored.Received), Valid: true}
		err = tx.GetContext(ctx, &known.OpenHash, q.store.dialect.Queue.SelectStored, consumer, id)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil //nolint:nilnil // nothing is known
	case err != nil:
		return nil, err
	}
	return &known, nil
}

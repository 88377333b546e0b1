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

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/stored"
)

// epochLook is how often a queue without an OrderKey looks for open messages of older epochs, whose
// processes may still run.
const epochLook = 10 * time.Second

// olderEpochs is what a queue knows about the epochs before its own.
type olderEpochs struct {
	looked time.Time
	left   bool // messages remain that another process works on, or that nobody had time to move
}

// olderEpoch is an epoch before that of a queue.
type olderEpoch struct {
	ID        int32  `db:"id"`
	KeySource []byte `db:"key_source"`
}

// adopt moves the open messages of older epochs to the epoch of q. It reports whether some could
// not be moved yet. Without an OrderKey no other message waits for them, so an error is logged only.
func (q *Queue) adopt(ctx context.Context, consumer int32) (left bool, err error) {
	q.adopting.Lock()
	defer q.adopting.Unlock()
	o := &q.older
	if q.name.Epoch == 0 || !o.left && q.config.OrderKey == nil && time.Since(o.looked) < epochLook {
		return false, nil
	}
	o.left, err = q.adoptOlder(ctx, consumer)
	o.looked = time.Now()
	if err != nil && q.config.OrderKey == nil && ctx.Err() == nil {
		q.store.log.Error("inbox: open messages of an older epoch could not be moved to the new one; retrying", database.Explain(err), q.fields())
		err = nil
	}
	return o.left, err
}

func (q *Queue) adoptOlder(ctx context.Context, consumer int32) (left bool, err error) {
	bound, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var older []olderEpoch
	err = q.store.db.SelectContext(bound, &older, q.store.dialect.Queue.SelectOlderEpochs,
		[]byte(q.store.config.Namespace), []byte(q.name.Name), q.name.Epoch)
	if err != nil {
		return false, q.store.db.Noticed(err)
	}
	for _, from := range older {
		open, err := q.hasOpen(ctx, from.ID)
		if err == nil && open {
			if err = q.adoptFrom(ctx, from, consumer); err == nil {
				open, err = q.hasOpen(ctx, from.ID)
			}
		}
		if err != nil {
			return false, err
		}
		left = left || open
	}
	return left, nil
}

func (q *Queue) hasOpen(ctx context.Context, consumer int32) (open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	err = q.store.db.GetContext(ctx, &open, q.store.dialect.Queue.SelectOpen, consumer)
	return open, q.store.db.Noticed(err)
}

// adoptingFor is for how long a look moves messages of an older epoch, and for how long a transaction does: each moves one at
// least, and between two looks others are delivered, or a pause is noticed.
const adoptingFor = time.Second

// adoptFrom moves messages of one older epoch that no process works on, as many as it can for a while.
func (q *Queue) adoptFrom(ctx context.Context, from olderEpoch, to int32) error {
	const atOnce = 100
	began := time.Now()
	late := func() bool { return time.Since(began) > adoptingFor }
	same := string(from.KeySource) == q.config.Key.source
	for opened := map[int64]rekeyed(nil); ; {
		var done adopted
		bound, cancel := context.WithTimeout(ctx, longest)
		err := q.write(bound, func(bound context.Context, tx *sqlx.Tx, tell tellParked) (err error) {
			done, err = q.adoptSome(bound, tx, from.ID, to, same, opened, atOnce, tell)
			return err
		})
		cancel()
		if err != nil {
			return fmt.Errorf("move messages from an older epoch: %w", err)
		}
		for _, twin := range done.twins {
			q.observeAdoptedTwin(ctx, twin)
		}
		if taken := done.rows - len(done.unopened); taken > 0 {
			q.store.log.Info("inbox: open messages of an older epoch were moved to the new one", q.fields().Add(watermill.LogFields{
				"count": taken - done.superseded, "superseded": done.superseded,
			}))
			q.bell.Ring()
		}
		if len(done.unopened) == 0 && !done.more || late() {
			return nil
		}
		if opened, err = q.openAdoptable(ctx, done.unopened, same, late); err != nil {
			return err
		}
	}
}

// adopted is the result of adopting some messages in one transaction.
type adopted struct {
	rows       int  // all of them
	more       bool // there may be others
	superseded int
	unopened   []stored.Message // they stay until their payloads were looked at, outside of the transaction
	twins      []*adoptedTwin
}

func (q *Queue) adoptSome(
	ctx context.Context, tx *sqlx.Tx, from, to int32, same bool, opened map[int64]rekeyed, atMost int, tell tellParked,
) (done adopted, err error) {
	began := time.Now()
	if q.store.dialect.OneWriter { // its transactions must begin with a write
		if _, err := tx.ExecContext(ctx, q.store.dialect.LockConsumer, to); err != nil {
			return adopted{}, err
		}
	}
	var rows []stored.Message
	if err := tx.SelectContext(ctx, &rows, q.store.dialect.Queue.SelectAdoptable, from, atMost); err != nil {
		return adopted{}, err
	}
	done.rows, done.more = len(rows), len(rows) == atMost
	for n, row := range rows {
		if n > len(done.unopened) && time.Since(began) > adoptingFor { // it must end in time, or nothing moves
			done.rows, done.more = n, true
			break
		}
		as, known := opened[row.ID]
		switch {
		case row.Whole():
			as = q.rekeyed(ctx, row, same)
		case !known || as.hashes != nil && as.hashes[0] != row.Hash: // an operator may have replaced it
			done.unopened = append(done.unopened, row)
			continue
		}
		superseded, twin, err := q.adoptOne(ctx, tx, row, to, as, tell)
		if err != nil {
			return adopted{}, fmt.Errorf("message %q: %w", row.UUID, err)
		}
		if superseded {
			done.superseded++
		}
		if twin != nil {
			done.twins = append(done.twins, twin)
		}
	}
	return done, nil
}

// openAdoptable identifies messages whose payloads are sealed or out of their rows, until it is late. Once one of them could
// not be opened in time, it tries no other.
func (q *Queue) openAdoptable(ctx context.Context, rows []stored.Message, same bool, late func() bool) (map[int64]rekeyed, error) {
	opened := make(map[int64]rekeyed, len(rows))
	left := afterwards
	for _, row := range rows {
		if len(opened) > 0 && late() {
			break
		}
		opening, cancel := context.WithTimeout(ctx, left)
		opened[row.ID] = q.rekeyed(opening, row, same)
		if opening.Err() != nil {
			left = 0
		}
		cancel()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

// adoptOne moves a message with its claim and its outcome. If the new epoch knows the message, the
// message of the older epoch is superseded, but not what its handler returned and nobody has published
// yet. A message with the key of another message is not a copy. Unless the key is another one, what the older epoch has handled stays handled there alone.
func (q *Queue) adoptOne(
	ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, as rekeyed, tell tellParked,
) (superseded bool, twin *adoptedTwin, err error) {
	for range maxRounds {
		known, err := q.knows(ctx, tx, to, as.id)
		if err != nil {
			return false, nil, err
		}
		var own *lookup
		if as.known {
			if own, err = q.knows(ctx, tx, row.Consumer, row.MessageID); err != nil {
				return false, nil, err
			}
		}
		handled := own != nil && own.completed()
		if unpublished := handled && own.unpublished(row); known != nil && as.isCopy(known) && !unpublished {
			if superseded, err := q.supersede(ctx, tx, row, to, as.id, known); superseded || err != nil {
				return superseded, nil, err
			}
			continue
		}
		if handled {
			return q.adoptHandled(ctx, tx, row, to, as, own, tell)
		}
		if known != nil {
			return q.adoptTwin(ctx, tx, row, to, as, known, tell)
		}
		return false, nil, q.moveTo(ctx, tx, row, to, as.id)
	}
	return false, nil, ErrLost
}

// supersede closes a message of an older epoch that the new epoch knows, under this id. It reports false if what is known has
// changed since.
func (q *Queue) supersede(ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, id []byte, known *lookup) (superseded bool, err error) {
	d := q.store.dialect
	if joined, err := q.store.join(ctx, tx, to, id, stored.Status(known.OpenStatus.Int16)); !joined || err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, d.CloseClaim, stored.ResultSuperseded, row.Consumer, row.MessageID); err != nil {
		return false, err
	}
	if _, err = tx.ExecContext(ctx, d.DeleteMessage, row.Consumer, row.MessageID, row.Status); err == nil {
		err = q.moveSteps(ctx, tx, row, id)
	}
	return err == nil, err
}

// moveTo moves a message, with all that belongs to it, to an id that the epoch to does not know.
func (q *Queue) moveTo(ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, id []byte) error {
	d := q.store.dialect
	if err := q.dropHistory(ctx, tx, to, id); err != nil {
		return err
	}
	if err := q.moveRow(ctx, tx, row, to, id); err != nil {
		return err
	}
	for _, statement := range []string{
		d.Queue.AdoptClaim, d.Queue.AdoptOutcome, d.Queue.AdoptResult, d.Queue.AdoptJournal, d.Queue.AdoptHistory,
	} {
		if _, err := tx.ExecContext(ctx, statement, to, id, row.Consumer, row.MessageID); err != nil {
			return err
		}
	}
	// A process of the last release may receive another copy of a message that was handled.
	_, err := tx.ExecContext(ctx, d.Queue.KeepClaim, row.Consumer, row.MessageID, to, id)
	return err
}

// dropHistory deletes the history that a deleted claim has left under an id: its numbers would collide.
func (q *Queue) dropHistory(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte) error {
	stray, args, err := q.store.dialect.In(q.store.dialect.History.DeleteHistory, consumer, [][]byte{id})
	if err == nil {
		_, err = tx.ExecContext(ctx, stray, args...)
	}
	return err
}

// moveRow moves the row of a message. The janitor knew nothing of it in this epoch until now: if it has deleted claims
// there, one of them may have been of this message, which arrives now, see [delivery.rememberedFrom].
func (q *Queue) moveRow(ctx context.Context, tx *sqlx.Tx, row stored.Message, to int32, id []byte) error {
	d := &q.store.dialect.Queue
	_, err := tx.ExecContext(ctx, d.AdoptMessage, to, id, row.Consumer, row.MessageID)
	if err == nil {
		_, err = tx.ExecContext(ctx, d.AdoptLate, to, id)
	}
	if err == nil {
		err = q.moveSteps(ctx, tx, row, id)
	}
	return err
}

// rekeyed identifies a message of an older epoch in this epoch, whose Key and Fingerprint may
// differ.
type rekeyed struct {
	id     []byte
	print  [sha256.Size]byte
	hashes []int64          // a copy has one of them; nil: every message with the id is a copy
	msg    *message.Message // nil if the stored message cannot be read
	known  bool             // the older epoch has the key of this one, which was raised to handle everything again
}

// isCopy reports whether known belongs to a copy of this message.
func (r rekeyed) isCopy(known *lookup) bool {
	return r.hashes == nil || slices.ContainsFunc(r.hashes, known.of)
}

// rekeyed identifies a message in this epoch. A collision keeps its id. A message without a key
// keeps its id until it is tried again.
func (q *Queue) rekeyed(ctx context.Context, row stored.Message, same bool) rekeyed {
	as := rekeyed{id: row.MessageID, known: same}
	if row.Original != nil || keycode.IsKeyless(row.MessageID) {
		return as
	}
	as.hashes = []int64{row.Hash}
	binary.BigEndian.PutUint64(as.print[:], uint64(row.Hash)) //nolint:gosec // the bits matter, not the sign
	l := newLeased(q, row, 0, false)
	unopened := l.open(ctx)
	switch {
	case unopened == nil:
	case unopenable(unopened) || same && q.config.Fingerprint == nil:
		return as
	case q.config.Fingerprint != nil || q.config.Key.has(byCloudEvent, byJSON, byPayload, byFunc, withinType):
		if !errors.Is(ctx.Err(), context.Canceled) { // the service does not close
			q.store.log.Error("inbox: a message of an older epoch keeps its old key, since its payload cannot be opened now; "+
				"a copy with the new key is handled beside it", unopened, l.event(fate{}).fields())
		}
		return as
	}
	msg, err := l.Message(ctx)
	if err != nil {
		return as // the queue reports this when it takes the message
	}
	payload := []byte(msg.Payload)
	if unopened == nil {
		as.msg = msg
		if q.config.Fingerprint != nil {
			payload, err = callFingerprint(q.config.Fingerprint, msg)
		}
		if err == nil {
			as.print = sha256.Sum256(payload)
			as.hashes = append(as.hashes, hashOf(as.print))
		}
	}
	key, err := q.config.Key.valueFrom(string(row.Topic), msg)
	if err == nil { // else the key is a position, for instance, which only the source knows
		as.id = keycode.Encode(key)
	}
	return as
}

// knows returns the claim and the open row of a key in an epoch, nil if there is neither.
func (q *Queue) knows(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte) (*lookup, error) {
	var known lookup
	err := known.scan(tx.QueryRowContext(ctx, q.store.dialect.Lookup, consumer, id))
	if errors.Is(err, sql.ErrNoRows) { // a message that was stored on arrival has no claim
		var kept keptRow
		kept, err = q.store.kept(ctx, tx, consumer, id)
		known.OpenStatus = sql.NullInt16{Int16: int16(kept.Status), Valid: true}
		known.OpenHash = sql.NullInt64{Int64: kept.Hash, Valid: true}
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil //nolint:nilnil // the key is unknown
	case err != nil:
		return nil, err
	}
	return &known, nil
}

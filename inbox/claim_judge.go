package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/internal/stored"
)

// openMessage is what an open row says besides the message itself.
type openMessage struct {
	status    stored.Status
	attempts  int
	lastError lastError
	reason    string
	code      stored.ReasonCode
	delay     int64      // in microseconds, until the row is due
	waitsFor  *versioned // set if the version gate puts the message aside
}

// newRow is an open row that is to be inserted.
type newRow struct {
	args    []any // of InsertMessage
	payload storedPayload
}

// insertMessage stores the message of cl whole. The claim of its key must be open in tx.
func (s *Store) insertMessage(ctx context.Context, tx *sqlx.Tx, cl *claim, row newRow) error {
	_, err := tx.ExecContext(ctx, s.dialect.InsertMessage, row.args...)
	if err == nil {
		err = s.checkIn(ctx, tx, row.payload)
	}
	if err != nil {
		err = s.refused(ctx, err, row.payload.texts(cl.as.Came.Metadata)...)
		return fmt.Errorf("store the message, whose payload has %d bytes: %w", len(cl.as.Came.Payload), err)
	}
	return nil
}

// rowOf returns the row of the message of cl. The codec that it calls may lose the transaction, which MySQL and MariaDB
// do not tell: a statement that needs what the transaction has written must follow.
func (s *Store) rowOf(ctx context.Context, tx *sqlx.Tx, cl *claim, open openMessage) (newRow, error) {
	d := cl.delivery
	kind, version := d.consumer.config.Describe(d.msg)
	var aggregate []byte
	var number sql.NullInt64
	if open.waitsFor != nil {
		aggregate, number = open.waitsFor.id, sql.NullInt64{Int64: open.waitsFor.Number, Valid: true}
	}
	payload, err := s.sealPayloadIn(ctx, tx, d.consumer.config.Name, d.topic, d.as.Came.Copy())
	if err != nil {
		return newRow{}, err
	}
	partition, offset := s.position(d.msg)
	return newRow{[]any{
		cl.id32, d.id, open.status, open.attempts, []byte(d.topic), partition, offset, nil,
		noteText(kind), noteText(version), []byte(d.as.Came.UUID), msgcode.AppendMetadata(nil, d.as.Came.Metadata),
		payload.inRow, d.hash, open.lastError.text, stored.Group(open.lastError.text), open.lastError.code, noteText(open.reason), open.code,
		d.collidedWith, aggregate, number, payload.form, payload.ref, open.delay,
	}, payload}, nil
}

var (
	// errStored says that the message is in the table already, and its queue delivers it.
	errStored = errors.New("the message is stored, and its queue delivers it")

	errStoredOther = errors.New("another payload is stored under the key of the message, and not handled yet: " +
		"the source must deliver the message again")
)

// storeAside is insertMessage for a message that is not handled now. If a queue has stored a copy and not
// claimed it yet, storeAside stores nothing and returns errStored: the copy is judged when the queue delivers it.
func (cl *claim) storeAside(ctx context.Context, tx *sqlx.Tx, row newRow) error {
	s := cl.consumer.store
	kept, err := s.kept(ctx, tx, cl.id32, cl.id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if err := s.insertMessage(ctx, tx, cl, row); err != nil {
			return err
		}
		return s.note(ctx, tx, cl.id32, cl.id, putAside, nil)
	case err != nil:
		return fmt.Errorf("look up the stored message: %w", err)
	case !cl.is(kept.Hash):
		return errStoredOther
	}
	cl.stray()
	cl.joins = kept.Status
	cl.answer = "stored as " + stored.Received.String()
	return errStored
}

// judge parks a message that must not be handled, in the transaction of its claim, and returns why.
func (cl *claim) judge(ctx context.Context, tx *sqlx.Tx, what move) (objection why, err error) {
	objection, err = cl.objection(ctx, tx, what)
	if objection.text == "" || err != nil {
		return why{}, err
	}
	return objection, cl.park(ctx, tx, objection.text)
}

// reopen opens the claims that an attempt has made. Their messages are not handled by it.
func (s *Store) reopen(ctx context.Context, tx *sqlx.Tx, consumer int32, token int64, ids ...[]byte) error {
	if err := s.changeAll(ctx, tx, len(ids), s.dialect.ReopenClaim, consumer, ids, token); err != nil {
		return fmt.Errorf("open the claim: %w", err)
	}
	return nil
}

// dropClaims deletes the claims that an attempt has made, if they are there.
func (s *Store) dropClaims(ctx context.Context, tx *sqlx.Tx, consumer int32, token int64, ids ...[]byte) error {
	query, args, err := s.dialect.In(s.dialect.DropClaims, consumer, ids, token)
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return fmt.Errorf("drop the claim: %w", err)
	}
	return nil
}

// changeAll runs a statement that must change so many rows. If it does not, changeAll returns ErrLost.
func (s *Store) changeAll(ctx context.Context, tx *sqlx.Tx, rows int, statement string, args ...any) error {
	query, args, err := s.dialect.In(statement, args...)
	if err != nil {
		return err
	}
	changed, err := database.Affected(tx.ExecContext(ctx, query, args...))
	if err == nil && changed != int64(rows) {
		err = ErrLost
	}
	return err
}

// purgeLine returns the time up to which the janitor may have deleted the claim of cl, in this epoch or, with a
// FormerKey, in the one before. It reads after the claim, in statements of its own, so it sees a purge that
// freed the key.
func (cl *claim) purgeLine(ctx context.Context, db sqlx.QueryerContext) (latest int64, err error) {
	s := cl.consumer.store
	if latest, err = s.purgeLine(ctx, db, cl.id32); err != nil {
		return 0, err
	}
	latest = min(latest, cl.rememberedFrom().UnixMicro())
	if cl.consumer.former != nil { // where the message is stored under another key
		line, err := s.purgeLine(ctx, db, cl.former32)
		if err != nil {
			return 0, err
		}
		latest = max(latest, line)
	}
	return latest, nil
}

func (s *Store) purgeLine(ctx context.Context, db sqlx.QueryerContext, consumer int32) (line int64, err error) {
	if err := sqlx.GetContext(ctx, db, &line, s.dialect.SelectPurgeLine, consumer); err != nil {
		return 0, fmt.Errorf("read the purge line: %w", err)
	}
	return line, nil
}

// rememberedFrom returns the time from which on no claim of d has been deleted, whatever the purge line is: the shortest
// retention before the arrival of d. The janitor keeps a claim while a message is stored under its key.
func (d *delivery) rememberedFrom() time.Time {
	if d.lease != nil && !d.inherited() {
		return d.lease.receivedAt.Add(-MinRetention)
	}
	return time.Now().Add(-MinRetention)
}

// surelyMade returns the earliest time at which the message can have been made, and whether it says so.
func (d *delivery) surelyMade() (at time.Time, known bool) {
	made, known := d.consumer.config.MessageTime(d.msg)
	return made.Add(-d.consumer.config.ClockSkew), known && !made.IsZero()
}

// objection says why a message must not be handled. It is zero if nothing speaks against it.
func (cl *claim) objection(ctx context.Context, db sqlx.QueryerContext, what move) (why, error) {
	d, config := cl.delivery, &cl.consumer.config
	var err error
	if cl.parkedAsReplay, err = cl.refuses(ctx, db, what); err != nil || cl.parkedAsReplay {
		return d.refusal(), err
	}
	if d.keyless.text != "" {
		return d.keyless, nil
	}
	if what != insert { // it was judged when it was new
		return why{}, nil
	}
	if d.collidedWith != nil {
		return why{ReasonCollision, "same key as message " + keycode.String(d.collidedWith) + ", other payload"}, nil
	}
	surely, known := d.surelyMade()
	switch {
	case !known, surely.After(time.Now().Add(-MinRetention)):
		return why{}, nil
	case surely.After(d.rememberedFrom()) && cl.consumer.former == nil:
		return why{}, nil
	}
	line, err := cl.purgeLine(ctx, db)
	if err != nil {
		return why{}, err
	}
	if line == 0 || surely.After(time.UnixMicro(line)) {
		return why{}, nil
	}
	return why{ReasonTooOld, fmt.Sprintf("too old: made at %s, and claims up to %s are deleted, so it may have been handled",
		surely.Add(config.ClockSkew).UTC().Format(time.RFC3339), time.UnixMicro(line).UTC().Format(time.RFC3339))}, nil
}

package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/stored"
)

// lookup is what the tables say of a key.
type lookup struct {
	Result      int16
	Hash        int64
	Token       int64
	ProcessedAt int64
	Now         int64
	Topic       []byte
	Outcome     []byte
	OpenID      sql.NullInt64
	OpenStatus  sql.NullInt16
	OpenHash    sql.NullInt64
}

// scan reads by position: this is the hot path of duplicates.
func (l *lookup) scan(row *sql.Row) error {
	return row.Scan(&l.Result, &l.Hash, &l.Token, &l.ProcessedAt, &l.Now, &l.Topic, &l.Outcome,
		&l.OpenID, &l.OpenStatus, &l.OpenHash)
}

// completed reports whether the message was handled, or discarded, in the epoch of the claim.
func (l *lookup) completed() bool {
	return l.Result == stored.ResultCompleted || l.Result == stored.ResultDiscarded || l.Result == stored.ResultImported
}

// other reports whether the key belongs to a message with another hash.
func (l *lookup) other(hash int64) bool {
	if l.Result == stored.ResultOpen {
		return l.OpenStatus.Valid && l.OpenHash.Int64 != hash
	}
	return l.Result != stored.ResultImported && l.Hash != hash
}

// of reports whether the key belongs to a message with this hash: one that was handled, is stored, or has
// left only its claim.
func (l *lookup) of(hash int64) bool {
	if l.OpenStatus.Valid && l.OpenHash.Int64 == hash || l.Result == stored.ResultImported {
		return true
	}
	return l.Hash == hash && (l.Result != stored.ResultOpen || !l.OpenStatus.Valid)
}

// look reads the claim and the open row of the key, outside any transaction, and returns the next move.
func (cl *claim) look() (next move, err error) {
	s, d := cl.consumer.store, cl.delivery
	ctx, cancel := context.WithTimeout(d.ctx, cl.consumer.config.Timeout)
	defer cancel()
	var row lookup
	cl.openRow, cl.asFirstSent = false, false
	err = row.scan(s.db.QueryRowContext(ctx, s.dialect.Lookup, cl.id32, d.id))
	if errors.Is(err, sql.ErrNoRows) {
		return insert, nil // purged, or rolled back
	}
	if err != nil {
		return 0, fmt.Errorf("look up the claim: %w", err)
	}
	if d.keyless.text != "" { // an operator may have replaced its payload
		row.Hash, row.OpenHash.Int64 = d.hash, d.hash
	}
	if row.Result != stored.ResultOpen {
		return cl.completed(ctx, row)
	}
	if err := cl.lookOnly(retake); err != nil {
		return 0, err
	}
	if !row.OpenStatus.Valid {
		return retake, nil
	}
	status := stored.Status(row.OpenStatus.Int16)
	if status == stored.InProgress {
		cl.stray()
	}
	if cl.replayed && cl.lease == nil && status.Retryable() && cl.keyless.text == "" {
		if next, taken, err := cl.takeUp(ctx, row.OpenID.Int64); taken || err != nil {
			return next, err
		}
	}
	if !d.is(row.OpenHash.Int64) {
		return cl.collision()
	}
	if cl.lease == nil && (status == stored.FailedRetryable || status == stored.Received && s.bellOf(cl.consumer.name()) == nil) {
		cl.openRow, cl.openAs = true, status
		return retake, nil
	}
	if status == stored.InProgress && cl.lease != nil && !cl.inherited() { // seal checks that the lease is still ours
		return retake, nil
	}
	cl.joins = status
	cl.answer = "stored as " + status.String()
	return done, nil
}

// completed answers a copy of a message that was handled.
func (cl *claim) completed(ctx context.Context, row lookup) (next move, err error) {
	d := cl.delivery
	if row.Result != stored.ResultImported && !d.is(row.Hash) {
		return cl.collision()
	}
	if row.Outcome != nil {
		cl.outcome, err = cl.consumer.store.openOutcome(ctx, cl.consumer.config.Name, string(row.Topic), row.Outcome)
		if unopenable(err) && d.lease == nil { // to refuse each copy would stop the consumer; a queue would delete the outcome
			d.log().Error("inbox: what a handler produced cannot be opened, and stays stored", err, nil)
			cl.answer = ReasonCompleted
			return done, nil
		}
		if err != nil {
			return 0, fmt.Errorf("stored outcome: %w", err)
		}
		if cl.consumer.config.Outbox != nil { // the outcome is of a release without it
			if err := cl.moveOutcome(ctx, string(row.Topic)); err != nil {
				return 0, err
			}
		}
		cl.answer = ReasonOutcome
		return done, nil
	}
	// The handler of a younger claim may still run: if it committed the transaction itself and then
	// fails, the inbox takes its claim back.
	safe := 2*cl.consumer.config.Timeout + 3*cl.consumer.config.gatePatience() + afterwards
	if row.Now-row.ProcessedAt > safe.Microseconds() {
		cl.remember()
	}
	cl.answer = ReasonCompleted
	return done, nil
}

// remember adds the key to the settled keys in memory, unless a connection was lost since the claim.
func (cl *claim) remember() {
	s := cl.consumer.store
	if cl.collidedWith == nil && cl.known == s.db.Generation() {
		s.settled.Add(cl.memoryKey, cl.hash)
	}
}

// collision applies OnCollision to a message with the key, but not the payload, of another one.
func (cl *claim) collision() (next move, err error) {
	s, d := cl.consumer.store, cl.delivery
	if _, err := cl.askFormer(cl.ctx, s.db); err != nil { // if the epoch before handled it, it is a copy
		return 0, err
	}
	s.observeCollision(d.ctx, d.event(ReasonCollision))
	switch cl.consumer.config.OnCollision {
	case CollisionDrop:
		cl.answer = ReasonCollisionDropped
		return done, nil
	case CollisionFail:
		d.observe(KindFailed, ReasonCollision, ErrCollision)
		return 0, ErrCollision
	default:
		d.collide()
		return look, nil
	}
}

// duplicate reports a copy that is acked without running the handler. The caller holds no slot.
func (cl *claim) duplicate() {
	s, d := cl.consumer.store, cl.delivery
	if a := d.queueAttempt(); a != nil {
		a.succeeded()
	}
	cl.consumer.tally.duplicates.Add(1)
	if cl.outcome != nil {
		s.unsettled.watch(cl)
	}
	d.observeReplayed(cl.answeredReplay(), 0)
	if s.config.LogDropped {
		s.logDropped(d, cl.answer)
	}
	if !s.observers.wanted(KindDuplicate) && !s.debug.Load() {
		return
	}
	e := d.event(cl.answer)
	s.observers.tell(d.ctx, KindDuplicate, e)
	if s.debug.Load() {
		s.log.Debug("inbox: duplicate, handler not run", e.fields())
	}
}

// observeCollision reports a message with the key, but not the payload, of another one.
func (s *Store) observeCollision(ctx context.Context, e Event) {
	s.log.Info("inbox: collision of two messages", e.fields())
	s.observers.tell(ctx, KindCollision, e)
}

// observeParked reports a message that waits for an operator.
func (s *Store) observeParked(ctx context.Context, e Event) {
	s.tallies.of(stored.Name{Name: e.Consumer, Epoch: e.Epoch}).parked.Add(1)
	about := e
	about.Err = nil // the line says it already
	s.log.Error("inbox: message parked for an operator", e.Err, about.fields())
	s.observers.tell(ctx, KindParked, e)
}

package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
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

// What a claim's result says.
const (
	resultOpen       = 0
	resultCompleted  = 1
	resultDiscarded  = 2
	resultSuperseded = 3 // by the message of a newer epoch
)

// look reads what is known of the key, outside any transaction.
func (cl *Claim) look() (next step, err error) {
	s, d := cl.consumer.store, cl.delivery
	ctx, cancel := context.WithTimeout(d.ctx, cl.consumer.config.Timeout)
	defer cancel()
	var row lookup
	cl.openRow = false
	err = row.scan(s.db.QueryRowContext(ctx, s.dialect.Lookup, cl.id32, d.id))
	if errors.Is(err, sql.ErrNoRows) {
		return insert, nil // purged, or rolled back
	}
	if err != nil {
		return 0, fmt.Errorf("look up the claim: %w", err)
	}
	if row.Result != resultOpen {
		return cl.completed(row)
	}
	if !row.OpenStatus.Valid {
		return retake, nil
	}
	if row.OpenHash.Int64 != d.hash {
		return cl.collision()
	}
	status := Status(row.OpenStatus.Int16)
	if status == FailedRetryable && cl.lease == nil {
		cl.openRow = true
		return retake, nil
	}
	if status == InProgress && cl.lease != nil { // whether it is still ours is seen at the end
		return retake, nil
	}
	cl.answer = "stored as " + status.String()
	return done, nil
}

// completed answers a copy of a message that was handled.
func (cl *Claim) completed(row lookup) (next step, err error) {
	d := cl.delivery
	if row.Hash != d.hash {
		return cl.collision()
	}
	if row.Outcome != nil {
		cl.outcome, err = cl.consumer.store.openOutcome(d.ctx, cl.consumer.config.Name, string(row.Topic), row.Outcome)
		if err != nil {
			return 0, fmt.Errorf("stored outcome: %w", err)
		}
		cl.answer = "outcome not known to be published"
		return done, nil
	}
	// A younger one may still have a handler that runs: one that committed by itself and
	// then fails has its claim taken back.
	safe := 2*cl.consumer.config.Timeout + afterwards
	if row.Now-row.ProcessedAt > safe.Microseconds() {
		cl.remember()
	}
	cl.answer = "completed"
	return done, nil
}

// remember notes that the key is settled, unless a connection was lost since the claim.
func (cl *Claim) remember() {
	s := cl.consumer.store
	if cl.original == nil && cl.known == s.generation.Load() {
		s.settled.Add(cl.memoryKey, cl.hash)
	}
}

// collision decides about a message with the key, but not the payload, of another one.
func (cl *Claim) collision() (next step, err error) {
	s, d := cl.consumer.store, cl.delivery
	e := d.event("same key, other payload")
	for _, o := range s.observe.collision {
		o.ObserveCollision(d.ctx, e)
	}
	switch cl.consumer.config.OnCollision {
	case CollisionDrop:
		d.log().Info("dropped: same key as another message, other payload", nil)
		cl.answer = "collision dropped"
		return done, nil
	case CollisionFail:
		return 0, ErrCollision
	default:
		d.collide()
		return look, nil
	}
}

// duplicate tells of a copy that is acked without running the handler. No slot is held.
func (cl *Claim) duplicate() {
	s, d := cl.consumer.store, cl.delivery
	if cl.outcome != nil {
		s.unsettled.watch(cl)
	}
	if len(s.observe.duplicate) > 0 {
		e := d.event(cl.answer)
		for _, o := range s.observe.duplicate {
			o.ObserveDuplicate(d.ctx, e)
		}
	}
	if s.config.LogDropped {
		s.logDropped(d, cl.answer)
	}
	if s.debug {
		d.log().Debug("duplicate, handler not run", watermill.LogFields{"reason": cl.answer})
	}
}

func (cl *Claim) observeParked() {
	cl.log().Error("message parked for an operator: "+cl.parked, nil, nil)
	e := cl.event(cl.parked)
	for _, o := range cl.consumer.store.observe.parked {
		o.ObserveParked(cl.ctx, e)
	}
}

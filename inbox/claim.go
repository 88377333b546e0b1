package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/turns"
)

// Claim is what became of the wish to handle a delivery: either the right to, with a
// transaction that holds it, or the answer that there is nothing to do.
type Claim struct {
	*delivery

	id32    int32 // the consumer's
	fresh   bool
	openRow bool   // the claim was taken from a row of open messages, closed at the end
	inDoubt bool   // our commit failed, so it may have been applied
	over    bool   // committed or rolled back
	answer  string // how a copy was known
	parked  why    // if the message was parked instead
	refused bool   // because it was replayed
	queued  bool   // it was replayed, and the queue delivers what had failed
	outcome []*message.Message

	// What the version gate says, and what for.
	decided  bool
	verdict  verdict
	waitsFor versioned
	because  why
	gated    *message.Message // as it is at the gate
	heldFor  time.Duration
	advances []advance
	released int64
	visit    *visit

	suppressed *ambient.Suppressed // what the handler would have sent; nil where it is sent

	tx        *owned.Tx
	span      *span
	handler   context.Context //nolint:containedctx // given to the handler
	ambient   *ambient.Tx
	leave     func() // the slot
	turn      turns.Turn
	began     time.Time
	twinSpent time.Duration // waiting for other processes
	watched   time.Time     // since when its outcome waits for the ack
	known     int64         // the caches' generation when the claim was made
}

// Claim takes msg for this consumer. It waits for copies that are being handled in this
// process without holding anything, and for those in other processes for at most TwinWait.
//
// If [Claim.Fresh], the caller runs the handler with [Claim.Context] and must end with
// [Claim.Commit] or [Claim.Rollback]. Otherwise it acks msg after publishing
// [Claim.Outcome]. On an error it nacks msg: nothing was done.
func (c *Consumer) Claim(msg *message.Message) (*Claim, error) { return c.claim(msg, &visit{}) }

func (c *Consumer) claim(msg *message.Message, v *visit) (*Claim, error) {
	d, err := c.deliver(msg)
	if err != nil {
		return nil, c.refused(d, err)
	}
	s := c.store
	if _, live := ambient.From(d.ctx).Live(s.db); live {
		return nil, d.fail(errors.New("middleware.Inbox stands twice on this handler: remove one"))
	}
	if err := s.admit(d); err != nil {
		d.interrupted(err)
		return nil, d.fail(err)
	}
	if !s.work.enter() {
		d.interrupted(ErrClosed)
		return nil, ErrClosed
	}
	cl := &Claim{delivery: d, visit: v}
	defer func() {
		if !cl.fresh {
			s.work.leave()
		}
	}()
	s.warnUnattended()
	c.warnUnguarded(d)
	if !v.told {
		v.told = true
		s.observeReceived(d)
	}
	if kept, err := cl.keepKeyless(); kept {
		return cl, nil
	} else if errors.Is(err, errOtherKey) {
		return nil, c.refused(d, err)
	} else if err != nil {
		d.interrupted(err)
		return nil, d.fail(err)
	}
	if err := cl.obtain(); err != nil {
		var failed *beforeError
		if errors.As(err, &failed) {
			return nil, d.name(failed.error)
		}
		d.interrupted(err)
		return nil, d.fail(err)
	}
	if !cl.fresh {
		return cl, nil
	}
	cl.as.HandOver(cl.msg)
	if v.made != nil {
		v.made.Give(cl.msg)
	}
	return cl, cl.begin()
}

// begin runs OnBegin. Its failure is the handler's.
func (cl *Claim) begin() error {
	onBegin := cl.consumer.config.OnBegin
	if onBegin == nil {
		return nil
	}
	returned := false
	defer func() {
		if !returned {
			_ = cl.Rollback(errPanic)
		}
	}()
	err := onBegin(cl.handler, cl.tx.Tx, cl.msg)
	returned = true
	if err != nil {
		return cl.Rollback(fmt.Errorf("OnBegin: %w", err))
	}
	return nil
}

var errPanic = errors.New("the handler panicked")

// Fresh reports whether the handler must run.
func (cl *Claim) Fresh() bool { return cl.fresh }

// Outcome returns what an earlier run of the handler produced and the broker may not have:
// to be published again, with the same UUIDs, before the ack.
func (cl *Claim) Outcome() []*message.Message { return cl.outcome }

// Context returns the context for the handler: the message's, with the transaction in it,
// ending with the message's own context or with the transaction, whichever is first.
func (cl *Claim) Context() context.Context { return cl.handler }

// obtain waits for the turn of the key and decides what becomes of the delivery. The turn
// is kept only by a fresh claim: a function of the user's may panic in here.
func (cl *Claim) obtain() error {
	s, d := cl.consumer.store, cl.delivery
	key := d.memoryKey
	if hash, known := s.settled.Get(key); known && hash == d.hash {
		cl.answer = ReasonSettled
		cl.duplicate()
		return nil
	}
	turn, settled, err := s.turns.Take(d.ctx, key, d.hash)
	if err != nil {
		return err
	}
	if settled {
		cl.answer = ReasonWaited
		cl.duplicate()
		return nil
	}
	defer func() {
		if cl.fresh {
			return
		}
		if hash, known := s.settled.Get(key); known {
			turn.Settle(hash)
		} else {
			turn.Fail()
		}
	}()
	if err := cl.acquire(); err != nil {
		return err
	}
	cl.consumer.reread.saw(!cl.fresh)
	switch {
	case cl.fresh:
		cl.turn = turn
	case cl.parked.text != "":
		if cl.lease != nil && cl.original == nil {
			cl.lease.done()
		}
		s.observeParked(d.ctx, d.eventOf(cl.parked))
		cl.observeReplayed(cl.parkedReplay(), 0)
	default:
		cl.duplicate()
	}
	return nil
}

// step is what to do next for a claim.
type step int

const (
	done   step = iota
	insert      // a claim that should be new
	look        // at what is there
	retake      // an open claim
)

// maxRounds bounds how often a claim that changes under our eyes is looked at again.
const maxRounds = 10

// acquire goes from step to step until the delivery is either ours or answered.
func (cl *Claim) acquire() error {
	s, d := cl.consumer.store, cl.delivery
	next := insert
	if cl.lease != nil {
		if cl.lease.claimed() {
			next = retake
		}
	} else if cl.consumer.config.Redelivered(d.msg) || cl.consumer.reread.likely() {
		next = look
	}
	if cl.prepares() { // for nothing, where the message was handled
		next = look
	}
	for round, contended := 0, 0; next != done; round++ {
		if round-contended > maxRounds {
			return ErrLost
		}
		pass, up := s.outage.Enter(d.ctx)
		if err := d.ctx.Err(); err != nil {
			pass.Cancel()
			return err
		}
		if !up {
			s.observeOutage(d, ErrUnavailable) // no probe
			return ErrUnavailable
		}
		following, err := cl.guarded(pass, next)
		switch kind := dialect.Classify(err); {
		case err == nil:
			s.answers(pass)
			next = following
			if err := cl.prepare(next); err != nil {
				return err
			}
		case errors.Is(err, ErrInProgress):
			s.answers(pass)
			return err
		case kind == dialect.Contention && contended < maxContention:
			s.answers(pass)
			contended++
			s.observeContention(d, err)
			if err := pause(d.ctx, contended); err != nil {
				return err
			}
		case kind == dialect.Unavailable, kind == dialect.NoTable, kind == dialect.ReadOnly:
			_ = s.noticeLoss(err)
			pass.Tell(func() { s.observeOutage(d, err) })
			if pass.Down(d.ctx) {
				d.log().Error("inbox: the database does not serve the inbox, deliveries are held back", explain(err), nil)
			}
			return err
		default:
			pass.Cancel()
			return err
		}
	}
	return nil
}

// answers notes that the database serves the inbox.
func (s *Store) answers(pass outage.Pass) {
	if pass.Up() {
		s.log.Info("inbox: the database serves the inbox again", nil)
	}
}

// guarded lets another call probe the server if a function of the user's panics.
func (cl *Claim) guarded(pass outage.Pass, what step) (next step, err error) {
	returned := false
	defer func() {
		if !returned {
			pass.Cancel()
		}
	}()
	next, err = cl.attempt(what)
	returned = true
	return next, err
}

// attempt does one step in a slot, which only a fresh claim keeps.
func (cl *Claim) attempt(what step) (next step, err error) {
	d := cl.delivery
	reg, err := cl.consumer.register(d.ctx)
	if err != nil {
		return 0, err
	}
	cl.id32, cl.known = reg.id, reg.generation
	leave, err := cl.consumer.slot(d.ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		if !cl.fresh {
			leave()
		}
	}()
	cl.leave = leave
	if what == look {
		return cl.look()
	}
	return cl.take(what)
}

// take begins a transaction whose first statement claims the key.
func (cl *Claim) take(what step) (next step, err error) {
	s, d, config := cl.consumer.store, cl.delivery, &cl.consumer.config
	wait := config.TwinWait - cl.twinSpent
	if wait <= 0 {
		return 0, ErrInProgress
	}
	began := time.Now()
	span := newSpan(d.ctx, config.Timeout, wait)
	defer func() {
		if !cl.fresh {
			span.end()
		}
		if err != nil && span.late() && !errors.Is(err, ErrInProgress) {
			err = tookTooLong("Timeout", config.Timeout, err)
		}
	}()
	tx, err := s.begin(span.tx)
	if err != nil {
		if s.dialect.OneWriter { // there a twin is waited for here
			cl.twinSpent += time.Since(began)
		}
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if !cl.fresh {
			_ = tx.Rollback() // the server rolls back by itself what it cannot be told to
		}
	}()
	won, err := cl.claim(span, tx.Tx, what)
	if err != nil {
		return 0, err
	}
	if !won {
		return look, nil
	}
	objection, err := cl.judge(span.tx, tx.Tx, what)
	if err != nil {
		return 0, err
	}
	if objection.text == "" && cl.prepares() { // an operator asked for it only now
		return look, nil
	}
	if objection.text != "" {
		if err := tx.Commit(); err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
		cl.parked = objection
		return done, nil
	}
	cl.fresh, cl.tx, cl.span, cl.began = true, tx, span, began
	cl.openRow = cl.openRow || cl.lease != nil
	cl.ambient = ambient.New(tx.Tx, s.db)
	cl.ambient.Owner, cl.ambient.Cause, cl.ambient.Ended = cl, (*cause)(d), tx.Ended
	cl.handler = span.give(cl.ambient, cl)
	if cl.under(ReplaySuppress) {
		cl.handler, cl.suppressed = ambient.Suppress(cl.handler)
		cl.suppressed.Add(cl.visit.suppressed)
	}
	return done, nil
}

// cause is a delivery as the reason for what its handler stores in the outbox.
type cause delivery

func (c *cause) String() string { return ambient.Cause(c.consumer.config.Name, keycode.String(c.id)) }

// claim runs the claiming statement. It waits for another transaction that holds the key,
// for at most TwinWait over all tries, and reports whether the key is now ours.
func (cl *Claim) claim(span *span, tx *sqlx.Tx, what step) (won bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	began := time.Now()
	defer func() { cl.twinSpent += time.Since(began) }()
	patience := began.Add(cl.consumer.config.TwinWait - cl.twinSpent)
	if patience.Before(span.deadline) && !span.until(patience) {
		return false, ErrInProgress
	}
	var result sql.Result
	if what == retake {
		result, err = tx.ExecContext(span.tx, s.dialect.Retake, d.token, d.hash, cl.id32, d.id)
	} else {
		result, err = tx.ExecContext(span.tx, s.dialect.Claim, cl.id32, d.id, d.hash, d.token)
	}
	if !span.until(span.deadline) { // the wait is over, and so is the transaction
		return false, ErrInProgress
	}
	if err != nil {
		return false, fmt.Errorf("claim: %w", err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("claim: %w", err)
	}
	return rows == 1, nil
}

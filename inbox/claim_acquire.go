package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/outage"
	"github.com/millrace-go/millrace/internal/owned"
)

// obtain waits for the turn of the key, then claims it or answers the delivery. Only a fresh
// claim keeps the turn; a deferred function frees it otherwise, even if a user's function panics.
func (cl *claim) obtain() error {
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
		if cl.lease != nil && cl.collidedWith == nil {
			cl.lease.done()
		}
		s.observeParked(d.ctx, d.eventOf(cl.parked))
		cl.observeReplayed(cl.parkedReplay(), 0)
	default:
		if cl.moved != nil {
			cl.moved()
		}
		cl.duplicate()
	}
	return nil
}

// move is the next thing to do towards a claim.
type move int

const (
	done   move = iota
	insert      // INSERT a claim, expecting none
	look        // read the claim that exists
	retake      // UPDATE a claim that is open
)

// maxRounds bounds the moves for a claim that others keep changing.
const maxRounds = 10

// acquire makes move after move until the claim is fresh or the delivery is answered.
func (cl *claim) acquire() error {
	next := cl.firstMove()
	for round, contended := 0, 0; next != done; round++ {
		if round-contended > maxRounds {
			return ErrLost
		}
		pass, err := cl.enterOutage()
		if err != nil {
			return err
		}
		following, err := cl.guarded(&pass, next)
		if err != nil {
			if !cl.endMove(pass, err, contended) {
				return err
			}
			contended++
			cl.consumer.store.observeContention(cl.delivery, err)
			if err := database.Pause(cl.ctx, contended); err != nil {
				return err
			}
			continue
		}
		cl.consumer.store.answers(pass)
		next = following
		if err := cl.lookOnly(next); err != nil {
			return err
		}
		if err := cl.prepare(next); err != nil {
			return err
		}
	}
	return nil
}

// firstMove returns the move that most likely ends in a claim or an answer.
func (cl *claim) firstMove() move {
	first := insert
	switch {
	case cl.inherited():
		first = look
	case cl.lease != nil:
		if cl.lease.claimed() {
			first = retake
		}
	case cl.consumer.config.Redelivered(cl.msg) || cl.consumer.reread.likely():
		first = look
	}
	if cl.prepares() { // Before must not run for a message that was handled
		first = look
	}
	return first
}

// enterOutage waits, if the database is down, until this delivery may try it.
func (cl *claim) enterOutage() (outage.Pass, error) {
	pass, up := cl.consumer.store.outage.Enter(cl.ctx)
	if err := cl.ctx.Err(); err != nil {
		pass.Yield()
		return pass, err
	}
	if !up {
		cl.observe(KindOutage, databaseDown, ErrUnavailable) // no probe
		return pass, ErrUnavailable
	}
	return pass, nil
}

// endMove ends the pass of a move that failed, and reports whether acquire may make the move again.
func (cl *claim) endMove(pass outage.Pass, err error, contended int) (again bool) {
	s, d := cl.consumer.store, cl.delivery
	switch kind := saysOf(err); {
	case errors.Is(err, owned.ErrUnasked):
		pass.Cancel()
	case errors.Is(err, ErrInProgress), errors.Is(err, errFormer):
		s.answers(pass)
	case kind == dialect.Contention && contended < database.MaxTries:
		s.answers(pass)
		return true
	case kind.Down():
		_ = s.db.Noticed(err)
		pass.Tell(func() { d.observe(KindOutage, databaseDown, err) })
		if pass.Down(d.ctx) {
			d.log().Error("inbox: the database does not serve the inbox, deliveries are held back", database.Explain(err), nil)
		}
	default:
		pass.Cancel()
	}
	return false
}

// answers notes that the database serves the inbox.
func (s *Store) answers(pass outage.Pass) {
	if pass.Up() {
		s.log.Info("inbox: the database serves the inbox again", nil)
	}
}

// guarded makes the move what. If a user's function panics in it, another delivery may probe the database.
func (cl *claim) guarded(pass *outage.Pass, what move) (next move, err error) {
	returned := false
	defer func() {
		if !returned {
			pass.Cancel()
		}
	}()
	next, err = cl.moveInSlot(pass, what)
	returned = true
	return next, err
}

// moveInSlot makes one move in a slot, which only a fresh claim keeps.
func (cl *claim) moveInSlot(pass *outage.Pass, what move) (next move, err error) {
	d := cl.delivery
	cl.joins = 0
	reg, err := cl.consumer.register(d.ctx)
	if err != nil {
		return 0, cl.unlessSilent(err)
	}
	cl.id32, cl.known = reg.ID, reg.Generation
	if former := cl.consumer.former; former != nil {
		if reg, err = former.register(d.ctx); err != nil {
			return 0, cl.unlessSilent(fmt.Errorf("the epoch before: %w", err))
		}
		cl.former32 = reg.ID
	}
	leave, err := cl.slot(d.ctx, pass)
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
		next, err = cl.look()
	} else {
		next, err = cl.claimInTx(what)
	}
	if err == nil && next == done && cl.joins != 0 {
		var joined bool
		if joined, err = cl.join(); !joined {
			next = look
		}
	}
	return next, cl.unlessSilent(err) // in the slot, so that a connection is free
}

// atOnce is a context that has ended: with it, slot takes a slot that is free, and does not wait.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// slot waits for a slot. A delivery that probes the database lets others probe while it waits, since that may be until
// a handler ends.
func (cl *claim) slot(ctx context.Context, pass *outage.Pass) (leave func(), err error) {
	c := cl.consumer
	for pass.Probes() {
		if leave, err := c.slot(atOnce); err == nil { //nolint:contextcheck // it does not wait
			return leave, nil
		}
		pass.Yield()
		if leave, err = c.slot(ctx); err != nil {
			return nil, err
		}
		var admitted bool
		if *pass, admitted = c.store.outage.TryEnter(); admitted {
			return leave, nil
		}
		leave()
		if *pass, err = cl.enterOutage(); err != nil {
			return nil, err
		}
	}
	return c.slot(ctx)
}

// claimInTx begins a transaction whose first statement claims the key. If the claim is fresh, the
// transaction stays open for the handler.
func (cl *claim) claimInTx(what move) (next move, err error) {
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
	tx, err := s.db.Begin(span.tx)
	if err != nil {
		if s.dialect.OneWriter { // there, BEGIN waits for a twin
			cl.twinSpent += time.Since(began)
		}
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if !cl.fresh {
			_ = tx.Rollback() // if this fails, the server rolls back when the connection ends
		}
	}()
	won, err := cl.claimKey(span, tx.Tx, what)
	if won {
		won, err = cl.claimFormer(span, tx.Tx)
	}
	if err != nil {
		return 0, err
	}
	if !won {
		return look, nil
	}
	objection, err := cl.judge(span.tx, tx.Tx, what)
	switch {
	case errors.Is(err, errStored):
		return done, nil
	case err != nil:
		return 0, err
	case objection.text != "" && cl.step != nil && cl.step.taken: // it must not advance the aggregate
		cl.visit.unstepped = true
		return insert, nil
	case objection.text != "":
		if err := tx.Commit(); err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
		cl.parked = objection
		return done, nil
	case cl.prepares(): // the objection that let Before be skipped is gone
		return look, nil
	}
	cl.keep(tx, span, began)
	return done, nil
}

// keep makes the claim fresh, with tx for the handler.
func (cl *claim) keep(tx *owned.Tx, span *span, began time.Time) {
	cl.fresh, cl.tx, cl.span, cl.began = true, tx, span, began
	cl.openRow = cl.openRow || cl.lease != nil
	cl.ambient = ambient.New(tx.Tx, cl.consumer.store.db.DB)
	cl.ambient.Owner, cl.ambient.Cause, cl.ambient.Ended = cl, (*cause)(cl.delivery), tx.Ended
	cl.handler = span.give(cl.ambient, cl)
	if cl.under(ReplaySuppress) {
		cl.handler, cl.suppressed = ambient.Suppress(cl.handler)
		cl.suppressed.Add(cl.visit.suppressed)
	}
}

// cause names a delivery as the origin of what its handler stores in the outbox.
type cause delivery

func (c *cause) String() string { return ambient.Cause(c.consumer.config.Name, keycode.String(c.id)) }

// claimKey runs the statement that claims the key and reports whether the key is now ours.
func (cl *claim) claimKey(span *span, tx *sqlx.Tx, what move) (won bool, err error) {
	s, d := cl.consumer.store, cl.delivery
	cl.step = nil
	if what == retake {
		return cl.execClaim(span, tx, s.dialect.Retake, d.token, d.hash, cl.id32, d.id)
	}
	if cl.step = cl.nextStep(); cl.step != nil {
		return cl.claimAndStep(span, tx)
	}
	return cl.execClaim(span, tx, s.dialect.Claim, cl.id32, d.id, d.hash, d.token)
}

// execClaim runs a claiming statement and reports whether it changed a row.
func (cl *claim) execClaim(span *span, tx *sqlx.Tx, statement string, args ...any) (won bool, err error) {
	rows, err := cl.execPatiently(span, tx, ErrInProgress, statement, args...)
	return rows == 1, err
}

// execPatiently runs a claiming statement and returns how many rows it changed. While another transaction
// holds the key it waits, at most TwinWait over all tries, and then returns late.
func (cl *claim) execPatiently(span *span, tx *sqlx.Tx, late error, statement string, args ...any) (rows int64, err error) {
	began := time.Now()
	defer func() { cl.twinSpent += time.Since(began) }()
	if !span.wait(cl.consumer.config.TwinWait - cl.twinSpent) {
		return 0, late
	}
	result, err := tx.ExecContext(span.tx, statement, args...)
	switch {
	case !span.resume(): // the wait took too long, which ended the transaction
		return 0, late
	case dialect.Cut(err):
		return 0, cutShort(late, err)
	}
	if err == nil {
		rows, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	return rows, nil
}

package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/internal/stored"
)

// afterwards bounds the statements that clean up after a handler.
const afterwards = 5 * time.Second

// Commit ends a successful run. In the same transaction it stores what the handler produced: in
// the outbox if there is one, else as the outcome of the message. An outcome it also returns, for
// the caller to publish before it acks msg. On an error nothing was done, unless the answer to
// the COMMIT was lost: then the redelivery finds out.
func (cl *claim) Commit(produced []*message.Message) ([]*message.Message, error) {
	produced = original.Apart(cl.ctx, produced, cl.msg)
	cl.as.Restore(cl.msg) // from here on, msg is as the inbox received it
	cl.confirmStep()
	if cl.verdict != admitted {
		return nil, cl.turnAway(produced)
	}
	if err := cl.approve(produced); err != nil {
		return nil, cl.Rollback(err)
	}
	produced = cl.suppress(produced)
	early := cl.answeredEarly()
	if err := dialect.Unhide(cl.finish(produced)); err != nil {
		// Another transaction may hold a lock on the held messages that this one releases, or on the
		// stored message that it closes; on Galera, one of another node may have written what this one
		// did. While our transaction is open, or if its COMMIT was refused, it is safe to try again.
		if (cl.refused || cl.ambient.Open()) && cl.contended(err) {
			return nil, cl.giveUp()
		}
		return nil, cl.Rollback(cl.unrecorded(err))
	}
	cl.succeed(produced, early)
	if cl.consumer.config.Outbox != nil {
		return nil, nil
	}
	cl.outlast(produced)
	return produced, nil
}

// answeredEarly reports, also to the log, a message that was acked by its handler.
func (cl *claim) answeredEarly() bool {
	early := closed(cl.msg.Acked())
	if early {
		cl.log().Error("inbox: the message was acked before its effects were committed, so a crash can lose it",
			errAcked, nil)
	}
	return early
}

// finish writes what belongs to the claim and commits. If the transaction was over already, it finds
// out whether the handler committed it.
func (cl *claim) finish(produced []*message.Message) error {
	cl.ambient.Reclaim()
	// Not with the handler's context: a closing router must not undo a finished run.
	err := cl.unlessBusy(cl.sealAndWrite(ambient.With(cl.span.tx, cl.ambient), produced, lateHeld))
	if err == nil {
		cl.ambient.End()
		err = sql.ErrTxDone // past Timeout no COMMIT is sent, so nothing is in doubt
		if !cl.span.late() {
			err = cl.tx.Commit()
		}
		switch {
		case errors.Is(err, owned.ErrLost):
			return cl.reportLostTx()
		case flight.Failed(err) && dialect.NotHeld(err):
			err = errEnded // the handler may have committed it
		case errors.Is(err, flight.ErrRows): // only the open row must be there
			return ErrLost
		}
		if err != nil && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, errEnded) {
			cl.notCommitted(err)
			return database.Explain(cl.consumer.store.db.Noticed(fmt.Errorf("commit: %w", err)))
		}
	}
	if err == nil || !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, errEnded) && !cl.span.late() {
		return err
	}
	cl.ambient.End()
	done, lost := cl.acceptHandlersCommit(produced)
	if done || lost != nil && !errors.Is(err, errNotKept) { // that the transaction has ended says less than what it waited for
		return lost
	}
	if cl.span.late() {
		return err
	}
	return cl.reportLostTx()
}

// errBusy says why a driver takes no statement of ours.
var errBusy = errors.New("rows of a query are open in the transaction, or a statement runs there: close rows, and wait for statements, " +
	"before the handler returns")

// unlessBusy returns err, of a statement after the handler, or errBusy if the handler is to blame: a driver may call a connection
// bad that is in use.
func (cl *claim) unlessBusy(err error) error {
	if dialect.Classify(err) == dialect.Unavailable && cl.tx.Busy() {
		return fmt.Errorf("%w (%v)", errBusy, err) //nolint:errorlint // the database is not to blame
	}
	return err
}

// notCommitted notes what an error of COMMIT says: a conflict is a refusal, and most others leave it open whether
// the transaction was committed.
func (cl *claim) notCommitted(err error) {
	cl.refused = dialect.Classify(err) == dialect.Contention
	cl.inDoubt = !cl.refused && !dialect.Aborted(err) && !flight.Failed(err)
}

// approve returns an error if the run must not be committed.
func (cl *claim) approve(produced []*message.Message) error {
	config := &cl.consumer.config
	for _, err := range []error{cl.ambient.Failure(), cl.ungated} {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSwallowed, err)
		}
	}
	if cl.ambient.Running() {
		return fmt.Errorf("%w: %w", ErrSwallowed, errReturnedBefore)
	}
	if closed(cl.msg.Nacked()) {
		return errNacked
	}
	if i := slices.Index(produced, nil); i >= 0 {
		return fmt.Errorf("the handler returned a nil message, number %d of %d", i+1, len(produced))
	}
	if len(produced) == 0 && !cl.ambient.Taken() {
		if config.RequireTx {
			return ErrTxNotUsed
		}
		cl.warnForgottenTx()
	}
	if len(produced) == 0 || message.PublishTopicFromCtx(cl.ctx) != "" {
		return nil
	}
	cl.unserved = true
	if cl.lease != nil && message.HandlerNameFromCtx(cl.ctx) == "" {
		return fmt.Errorf("the handler returned %d messages, but a stored message does not know where they go: "+
			"decorate the subscriber of this handler with pubsub.Durable, not the router", len(produced))
	}
	return fmt.Errorf("the handler returned %d messages, but the router was given no topic to publish them to: "+
		"add it with AddHandler", len(produced))
}

// warnForgottenTx counts a handler that succeeded without its transaction, and warns once per consumer.
func (cl *claim) warnForgottenTx() {
	cl.observe(KindForgottenTx, "transaction not used", nil)
	cl.consumer.warnedForgotten.Do(func() {
		cl.log().Info("inbox: the handler succeeded without taking its transaction: use inbox.Tx, or exclude it with Skip; said once per consumer", nil)
	})
}

// succeed frees all that the run holds, after the commit, and reports it.
func (cl *claim) succeed(produced []*message.Message, early bool) {
	s := cl.consumer.store
	cl.rememberVersions()
	cl.end()
	if a := cl.queueAttempt(); a != nil {
		a.succeeded()
	}
	switch {
	case cl.queuePublishes(produced):
		cl.lease.row.Status = stored.Settling
	case cl.lease != nil:
		cl.lease.done()
	}
	returned := len(produced) > 0 && cl.consumer.config.Outbox == nil
	if returned || cl.collidedWith != nil { // a waiting copy must not be acked while the broker may lack the outcome
		cl.turn.Fail()
	} else {
		cl.remember()
		cl.turn.Settle(cl.hash)
	}
	cl.ambient.Committed()
	cl.advanced()
	if returned && !early {
		s.unsettled.watch(cl)
	}
	cl.tellRan()
	tally := cl.consumer.tally
	tally.ran(&tally.completed, cl.began)
	if !s.observers.wanted(KindCompleted) && !s.debug.Load() {
		return
	}
	e := cl.event("completed")
	e.Duration = time.Since(cl.began)
	s.observers.tell(cl.ctx, KindCompleted, e)
	if s.debug.Load() {
		s.log.Trace("inbox: message handled", e.fields())
	}
}

// Rollback rolls back the transaction of a failed run and returns the error for the router. If the
// handler committed the transaction itself, its writes remain: Rollback reopens the claim, so that
// the redelivery runs the handler again, and records the failure. After Commit it does nothing.
func (cl *claim) Rollback(cause error) error {
	if cl.over {
		return cause
	}
	cause = sound(cause)
	cl.as.Seen.Give(cl.msg) // a copy: the handler may have kept, and change, the one it had
	if cl.verdict == postponed {
		return cl.giveUp()
	}
	defer cl.letGo() // in case a function of the user's panics
	s := cl.consumer.store
	cl.ambient.End()
	lost := cl.inDoubt && dialect.Classify(cause) == dialect.Unavailable
	if err := cl.tx.Rollback(); err != nil {
		s.db.Forget()
		lost = dialect.Classify(err) == dialect.Unavailable
	}
	cause = cl.reportRefusedWrites(cl.lateness(cause))
	if lost && !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, errBusy) { // past a deadline, the driver itself closes the connection
		cause = disconnected(cause)
	}
	reopened := false
	if !cl.inDoubt {
		reopened, cause = cl.takeBack(cause)
	}
	cl.failed(undecodable(cl.msg, cause))
	if !reopened && cl.records() && !isUnkept(cause) {
		cl.recordFailure(cause)
	}
	cl.letGo()
	cl.observeFailed(cause)
	// Wait here: the next claim is small and may well succeed, so nothing else would slow redeliveries.
	direct := cl.queueAttempt() == nil || isUnkept(cause) && cl.lease == nil // a queue delays what it has stored, and what it can store
	if direct && (cl.unserved || dialect.Full(cause) || errors.Is(cause, errDisconnected)) {
		cl.consumer.pace.wait(cl.ctx)
	}
	return cl.name(cause)
}

// letGo rolls a run back that was not committed and frees all that it holds, once.
func (cl *claim) letGo() {
	if cl.over {
		return
	}
	cl.ambient.End()
	_ = cl.tx.Rollback() // if this fails, the server rolls back when the connection ends
	cl.end()
	cl.turn.Fail()
}

// observeFailed reports a run that was rolled back. The router logs the error.
func (cl *claim) observeFailed(cause error) {
	tally := cl.consumer.tally
	tally.ran(&tally.failed, cl.began)
	s := cl.consumer.store
	if !s.observers.wanted(KindFailed) && !s.debug.Load() {
		return
	}
	e := cl.event(cl.failure(cause))
	e.Err, e.Duration = cause, time.Since(cl.began)
	s.observers.tell(cl.ctx, KindFailed, e)
	if s.debug.Load() {
		s.log.Debug("inbox: handler failed, its work was rolled back", e.fields())
	}
}

// failure returns the reason why the run failed: a panic, even if a middleware recovered from it.
func (cl *claim) failure(cause error) string {
	if cl.ambient != nil && errors.Is(cl.ambient.Failure(), errPanic) {
		return ReasonPanic
	}
	return reasonOf(cause)
}

// end frees the slot, the contexts and, unless the claim is postponed, the turns at the gate.
func (cl *claim) end() {
	cl.over = true
	cl.ambient.End()
	if cl.suppressed != nil {
		cl.suppressed.End()
	}
	cl.span.end()
	cl.leave()
	if cl.verdict != postponed {
		cl.visit.leave()
	}
	cl.consumer.store.work.leave()
}

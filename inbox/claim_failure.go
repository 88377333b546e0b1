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
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
)

// committed reports whether this attempt's claim is in the table, committed and completed.
func (cl *claim) committed(ctx context.Context) (bool, error) {
	var row struct {
		Result int16 `db:"result"`
		Token  int64 `db:"token"`
	}
	s := cl.consumer.store
	err := s.db.GetContext(ctx, &row, s.dialect.SelectClaim, cl.id32, cl.id)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether the handler committed: %w", err)
	}
	return row.Token == cl.token && row.Result != stored.ResultOpen, nil
}

// acceptHandlersCommit checks whether a handler that succeeded has committed its transaction
// itself. If so, the run counts as completed, and what it produced is stored after all.
func (cl *claim) acceptHandlersCommit(produced []*message.Message) (done bool, err error) {
	ctx, cancel := cl.cleanup()
	defer cancel()
	if err := cl.tx.Rollback(); err != nil {
		return false, err
	}
	mine, err := cl.committed(ctx)
	if err != nil || !mine {
		return false, err
	}
	cl.observeEnded("committed by the handler, counted as completed")
	s := cl.consumer.store
	err = s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error {
		own := ambient.New(tx, s.db.DB)
		defer own.End()
		ctx := ambient.With(ctx, own)
		rows, err := cl.sealRows(ctx, produced)
		if err != nil {
			return err
		}
		return cl.writeRows(ctx, tx, rows, produced)
	})
	return err == nil, err
}

// silence is how long a server may take to answer before it counts as hanging.
const silence = time.Second

// takeBack reopens a claim that a failed handler committed, and records the failure unless a queue
// does, so that the redelivery runs the handler again.
func (cl *claim) takeBack(cause error) (reopened bool, err error) {
	ctx, cancel := cl.cleanup()
	defer cancel()
	asked := time.Now()
	mine, err := cl.committed(ctx)
	if cl.span.late() && time.Since(asked) > silence { // the server, not the handler, used Timeout up
		cause = disconnected(cause)
	}
	if err == nil && !mine {
		return false, cause
	}
	if err == nil {
		err = cl.consumer.store.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error { return cl.reopen(ctx, tx, cause) })
	}
	if dialect.Classify(err) == dialect.Unavailable {
		return false, errors.Join(cause, database.Explain(err)) // the lost connection ended the transaction
	}
	if err != nil {
		cl.log().Error("inbox: the handler may have ended its transaction, and its claim could not be taken back", err, nil)
		return false, errors.Join(cause, err)
	}
	if len(cl.advances) > 0 { // somebody may have read the version that was taken back
		cl.consumer.store.db.Forget()
	}
	cl.observeEnded("committed by the handler, which then failed; the claim was taken back")
	return true, fmt.Errorf("%w; what it had written is committed: %w", ErrTxEndedByHandler, cause)
}

// reopen turns the completed claim into that of a failed message, so that its successors wait again.
func (cl *claim) reopen(ctx context.Context, tx *sqlx.Tx, cause error) error {
	s := cl.consumer.store
	var row *newRow
	kept := cl.queueAttempt() == nil // else the queue records the failure: both would count two attempts
	if kept {
		var err error
		if row, err = cl.sealFailure(ctx, tx, cause); err != nil && !errors.Is(err, errNotKept) {
			return err
		}
		kept = err == nil
	}
	if err := s.reopen(ctx, tx, cl.id32, cl.token, cl.id); err != nil {
		return err
	}
	if cl.formerID != nil { // else processes of the last release would take it for handled
		if err := s.dropClaims(ctx, tx, cl.former32, cl.token, cl.formerID); err != nil {
			return err
		}
	}
	for _, statement := range []string{s.dialect.DeleteOutcomes, s.dialect.DeleteResults, s.dialect.Journal.DeleteJournal} {
		query, args, err := s.dialect.In(statement, cl.id32, [][]byte{cl.id})
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	for _, a := range cl.advances {
		_, err := tx.ExecContext(ctx, s.dialect.Gate.RetreatAggregate, a.from, []byte{}, cl.id32, a.id, cl.token)
		if err != nil {
			return fmt.Errorf("take %s back: %w", a.Version, err)
		}
	}
	if cl.lease != nil { // else there would be an open claim, and no message any more that somebody tries again
		if err := cl.lease.hold(ctx, tx); err != nil {
			return fmt.Errorf("its lease lapsed, and whoever took the message found it handled: %w", err)
		}
	}
	if !kept {
		return nil
	}
	if err := cl.putFailure(ctx, tx, cause, row); !errors.Is(err, errNotKept) {
		return err
	}
	return nil // without its payload: the claim is open, and the redelivery brings the payload again
}

func (cl *claim) observeEnded(what string) {
	s, e := cl.consumer.store, cl.event(what)
	s.log.Error("inbox: a transaction was ended that is not the handler's to end", ErrTxEndedByHandler, e.fields())
	s.observers.tell(cl.ctx, KindEndedTx, e)
}

// lateness adds to err that Timeout ran out, if it did.
func (cl *claim) lateness(err error) error {
	if !cl.span.late() {
		return err
	}
	late := tookTooLong("Timeout", cl.consumer.config.Timeout, err)
	if isUnkept(err) { // a blob store that does not answer is no more the message's fault than one that refuses
		return &unkeptError{late}
	}
	return late
}

func tookTooLong(setting string, timeout time.Duration, err error) error {
	if errors.Is(err, context.Canceled) { // a router would not log it
		err = errors.New(err.Error())
	}
	return fmt.Errorf("%w: %s, %v, ran out: %w", context.DeadlineExceeded, setting, timeout, err)
}

// cleanup returns a context for statements after the handler. It outlives the delivery.
func (cl *claim) cleanup() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(cl.ctx), afterwards)
}

// records reports whether the claim records a failed run. If a queue delivers, the queue does.
func (cl *claim) records() bool {
	return cl.consumer.config.RecordFailures && cl.queueAttempt() == nil && cl.ctx.Err() == nil
}

// recordFailure records a failed run, best effort. It claims the key first, so that it waits
// for a twin that holds the key, and gives way to one that completes it.
func (cl *claim) recordFailure(cause error) {
	s := cl.consumer.store
	ctx, cancel := cl.cleanup()
	defer cancel()
	err := s.db.WriteInTurn(ctx, func(tx *sqlx.Tx) error {
		row, err := cl.sealFailure(ctx, tx, cause)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, s.dialect.OpenClaim, cl.id32, cl.id, cl.hash, cl.token)
		if err != nil {
			return err
		}
		return cl.putFailure(ctx, tx, cause, row)
	})
	if err != nil && !errors.Is(err, ErrLost) {
		cl.log().Error("inbox: the failure could not be recorded", err, nil)
	}
}

// sealFailure makes the row of a failed message that has none, for a transaction that has written nothing yet: where the
// codec loses it on MySQL or MariaDB, what follows is committed all the same, and nothing is missing. Elsewhere the row
// can wait, and sealFailure returns nil.
func (cl *claim) sealFailure(ctx context.Context, tx *sqlx.Tx, cause error) (*newRow, error) {
	if !cl.consumer.store.dialect.CommitsOnDDL || cl.openRow {
		return nil, nil //nolint:nilnil // putFailure makes it
	}
	row, err := cl.failedRow(ctx, tx, cause)
	if err != nil {
		return nil, err
	}
	return &row, nil
}

func (cl *claim) failedRow(ctx context.Context, tx *sqlx.Tx, cause error) (newRow, error) {
	open := openMessage{status: stored.FailedRetryable, attempts: 1, lastError: lastErrorOf(cause)}
	return cl.consumer.store.rowOf(ctx, tx, cl, open)
}

// putFailure writes the open row of a failed message: sealed, or a row that it makes if that is nil. tx must hold the
// claim of the key; if a twin has completed it, putFailure returns ErrLost.
func (cl *claim) putFailure(ctx context.Context, tx *sqlx.Tx, cause error, sealed *newRow) error {
	s := cl.consumer.store
	var row lookup
	if err := row.scan(tx.QueryRowContext(ctx, s.dialect.Lookup, cl.id32, cl.id)); err != nil {
		return err
	}
	if row.Result != stored.ResultOpen {
		return ErrLost // a twin completed it meanwhile
	}
	if row.OpenStatus.Valid {
		last := lastErrorOf(cause)
		n, err := database.Affected(tx.ExecContext(ctx, s.dialect.TouchMessage, last.text, stored.Group(last.text), last.code, 0, cl.id32, cl.id, stored.FailedRetryable))
		if err != nil || n == 0 {
			return err
		}
		return s.note(ctx, tx, cl.id32, cl.id, itFailed, cl.ran())
	}
	if sealed == nil {
		made, err := cl.failedRow(ctx, tx, cause)
		if err != nil {
			return err
		}
		sealed = &made
	}
	if err := s.insertMessage(ctx, tx, cl, *sealed); err != nil {
		return err
	}
	return s.note(ctx, tx, cl.id32, cl.id, itFailed, cl.ran())
}

// failed tells the queue, if one delivers cl, why the handler failed.
func (cl *claim) failed(cause error) {
	if isUnkept(cause) {
		cl.interrupted(cause)
		return
	}
	if a := cl.queueAttempt(); a != nil {
		a.failed(cl.ctx, cause, cl.ran())
	}
	cl.stray()
}

// unrecorded returns the error of a run that succeeded, or that the gate decided about, and could not be recorded.
func (cl *claim) unrecorded(err error) error {
	cl.unserved = unservable(err)
	if errors.Is(err, errNotKept) && !IsTerminal(err) {
		cl.unserved, err = true, &unkeptError{err}
	}
	return err
}

// unkeptError says that a codec or a blob store did not take a payload, which is no fault of the message or its handler: as if the
// database were full, it is an [ErrUnavailable] and no attempt.
type unkeptError struct{ error }

func (e *unkeptError) Unwrap() error { return e.error }

// Is reports that e is an [ErrUnavailable].
func (e *unkeptError) Is(target error) bool { return target == ErrUnavailable }

func isUnkept(err error) bool {
	var e *unkeptError
	return errors.As(err, &e)
}

// ran returns the run that failed.
func (cl *claim) ran() *failedRun { return cl.consumer.store.observers.newRun(cl.ctx, cl.began) }

// errorText returns as much of err as a column holds.
func errorText(err error) []byte { return noteText(err.Error()) }

// lastError is what the open row keeps of the last error.
type lastError struct {
	text []byte
	code stored.ErrorCode
}

func lastErrorOf(err error) lastError {
	last := lastError{text: errorText(err)}
	if errors.Is(err, errDisconnected) {
		last.code = stored.ErrorConnection
	}
	return last
}

// noteText returns as much of text as a column holds. Text that a message brings, such as its event
// type, may be longer.
func noteText(text string) []byte {
	const most = 4096
	return []byte(text[:min(len(text), most)])
}

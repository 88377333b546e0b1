package inbox

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/flight"
)

// errEnded says that the database ended a transaction that database/sql believes to be open.
var errEnded = errors.New("ended underneath")

// verifyClaim checks that the transaction is still the one that holds the claim. MySQL rolls a
// transaction back at a deadlock, SQLite when a statement is interrupted or the disk is full. If
// the handler then went on, Commit would commit its later writes without the claim and without
// its earlier writes.
//
// On MySQL and MariaDB a statement checks it. If late is not nil, a driver may send that statement with the COMMIT.
func (cl *claim) verifyClaim(late *flight.Late) error {
	s := cl.consumer.store
	if cl.tx.Lost() && !cl.span.late() {
		return cl.reportLostTx()
	}
	if !s.dialect.CommitsOnDDL {
		return cl.verifyTx()
	}
	ctx := cl.span.tx
	if late != nil {
		ctx = flight.With(ctx, late)
	}
	_, err := cl.tx.ExecContext(ctx, s.dialect.FailUnlessHeld, cl.id32, cl.id, cl.token)
	switch {
	case dialect.NotHeld(err):
		return cl.whyNotHeld()
	case err != nil:
		return fmt.Errorf("check that the transaction still holds the claim: %w", err)
	}
	return cl.verifyTx()
}

// verifyAfter calls seal, and then checks that the transaction still holds the claim: the codec that seal calls may
// write in the transaction, and so lose it. It does not call seal where the transaction is known to be over.
func (cl *claim) verifyAfter(late *flight.Late, seal func() error) error {
	s := cl.consumer.store
	if s.seals() && (!s.dialect.CommitsOnDDL || cl.span.late() || cl.tx.Ended()) { // else to ask costs a round trip
		if err := cl.verifyClaim(nil); err != nil {
			return err
		}
	}
	if err := seal(); err != nil {
		return err
	}
	return cl.verifyClaim(late)
}

// whyNotHeld distinguishes a transaction that was rolled back from one that the handler committed.
func (cl *claim) whyNotHeld() error {
	var row struct {
		Result int16 `db:"result"`
		Token  int64 `db:"token"`
		Live   bool  `db:"live"`
	}
	err := cl.tx.GetContext(cl.span.tx, &row, cl.consumer.store.dialect.SelectHeld, cl.id32, cl.id)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("look at the claim that the transaction does not hold: %w", err)
	case err == nil && row.Token == cl.token && !row.Live:
		return errEnded
	}
	return cl.reportLostTx()
}

// verifyTx returns errEnded if a statement of the handler ended the transaction. Asking the driver
// costs nothing; if the driver says so, verifyTx asks the server too.
func (cl *claim) verifyTx() error {
	if !cl.tx.Ended() {
		return nil
	}
	switch err := database.Stands(cl.span.tx, cl.tx.Tx); {
	case err == nil:
		return nil
	case dialect.Classify(err) == dialect.NoTransaction:
		return errEnded
	default:
		return fmt.Errorf("check that the transaction is open: %w", err)
	}
}

// reportLostTx reports a handler that succeeded after its transaction was rolled back.
func (cl *claim) reportLostTx() error {
	cl.observeEnded("rolled back underneath the handler, by a statement or by itself, and it went on without it")
	return ErrTxEndedByHandler
}

// reportRefusedWrites reports a failed handler that tried to commit its transaction, or to write after it was
// rolled back, where the database let us refuse that.
func (cl *claim) reportRefusedWrites(cause error) error {
	if !cl.tx.Refused() || cl.span.late() || errors.Is(cause, ErrTxEndedByHandler) {
		return cause
	}
	cl.observeEnded("committed by the handler, or written to after it was rolled back; that was refused")
	return fmt.Errorf("%w; nothing of it was committed: %w", ErrTxEndedByHandler, cause)
}

package pgxdb

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// nested is a transaction inside of one, made of a savepoint. Once it is over, its methods return pgx.ErrTxClosed.
type nested struct {
	native
	savepoint string
}

// Begin sets a savepoint, to which Rollback of the transaction that it returns goes back.
func (t *native) Begin(ctx context.Context) (pgx.Tx, error) {
	name := fmt.Sprintf("millrace_pgx_%d", t.savepoints.Add(1))
	if _, err := t.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	n := &nested{native: *t, savepoint: name}
	n.within = t
	return n, nil
}

// Commit releases the savepoint. After an error it can still be rolled back, as pgx.BeginFunc does.
func (n *nested) Commit(ctx context.Context) error {
	_, err := n.Exec(ctx, "RELEASE SAVEPOINT "+n.savepoint)
	if err == nil {
		n.over = true
	}
	return err
}

// Rollback closes rows and batches that were left open, and goes back to the savepoint, also where the context of the
// caller has ended. If it cannot, it rolls back the whole transaction: what was given up must not be committed.
func (n *nested) Rollback(context.Context) error {
	if n.ended() {
		return pgx.ErrTxClosed
	}
	n.run.Reclaim()
	_, err := n.Exec(n.ctx, "ROLLBACK TO SAVEPOINT "+n.savepoint) //nolint:contextcheck // the caller's may have ended
	if err != nil {
		n.run.GiveUp()
	}
	n.over = true
	return err
}

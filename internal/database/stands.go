package database

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Stands asks the server whether tx is still open. If a statement has ended it unseen, the error is
// [dialect.NoTransaction]: outside of a transaction a savepoint cannot be set, or is gone at once.
func Stands(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, `SAVEPOINT `+dialect.StandsSavepoint)
	if err == nil {
		_, err = tx.ExecContext(ctx, `RELEASE SAVEPOINT `+dialect.StandsSavepoint)
	}
	return err
}

package dialect

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// KeepsFailedCommit reports whether the driver leaves a transaction open after its COMMIT failed.
// On SQLite, it tries that with a temporary table on one connection. The servers of the other
// databases end the transaction themselves.
func (d *Dialect) KeepsFailedCommit(ctx context.Context, db *sqlx.DB) (keeps bool, err error) {
	if d.Name != SQLiteName {
		return false, nil
	}
	conn, err := db.Connx(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() //nolint:errcheck // goes back to the pool
	var enforced int
	if err := conn.GetContext(ctx, &enforced, `PRAGMA foreign_keys`); err != nil {
		return false, err
	}
	defer func() {
		after := context.WithoutCancel(ctx)
		_, dropped := conn.ExecContext(after, `DROP TABLE IF EXISTS temp.millrace_trial`)
		_, restored := conn.ExecContext(after, fmt.Sprintf(`PRAGMA foreign_keys = %d`, enforced))
		err = errors.Join(err, dropped, restored)
	}()
	for _, statement := range []string{
		`PRAGMA foreign_keys = 1`,
		`CREATE TEMP TABLE millrace_trial (
			id INTEGER PRIMARY KEY,
			parent INTEGER REFERENCES millrace_trial (id) DEFERRABLE INITIALLY DEFERRED)`,
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return false, err
		}
	}
	return failCommit(ctx, conn)
}

// failCommit commits a row whose parent is missing, and reports whether a transaction is still
// open after that.
func failCommit(ctx context.Context, conn *sqlx.Conn) (keeps bool, err error) {
	tx, err := conn.BeginTxx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO temp.millrace_trial (id, parent) VALUES (1, 2)`); err != nil {
		return false, errors.Join(fmt.Errorf("insert: %w", err), ignoreDone(tx.Rollback()))
	}
	if tx.Commit() == nil {
		return false, nil // foreign keys are not enforced, so the trial says nothing
	}
	_, err = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
	return err == nil, nil //nolint:nilerr // an error says that no transaction is open
}

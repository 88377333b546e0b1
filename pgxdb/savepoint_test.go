package pgxdb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/testdb"
)

// insert writes a row of which nothing may be committed.
func insert(ctx context.Context, t *testing.T, tx pgx.Tx) {
	t.Helper()
	_, err := tx.Exec(ctx, `INSERT INTO work VALUES (1)`)
	require.NoError(t, err)
}

// leaveOpen leaves rows of tx open, as a return from within their loop does.
func leaveOpen(ctx context.Context, t *testing.T, tx pgx.Tx) {
	t.Helper()
	rows, err := tx.Query(ctx, `SELECT generate_series(1, 3)`) //nolint:rowserrcheck,sqlclosecheck // they are left open
	require.NoError(t, err)
	require.True(t, rows.Next())
}

// TestASavepointWithOpenRows is rolled back all the same.
func TestASavepointWithOpenRows(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			sp, err := tx.Begin(ctx)
			require.NoError(t, err)
			insert(ctx, t, sp)
			leaveOpen(ctx, t, sp)
			assert.NoError(t, sp.Rollback(ctx))
			return nil
		}))
		assert.Empty(t, numbers(t, db), "after Rollback")

		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			assert.ErrorIs(t, pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
				insert(ctx, t, sp)
				leaveOpen(ctx, t, sp)
				return nil
			}), pgxdb.ErrBusy)
			return nil
		}))
		assert.Empty(t, numbers(t, db), "after a Commit that was refused, which BeginFunc rolls back")
	})
}

// TestASavepointWhoseContextHasEnded is rolled back all the same.
func TestASavepointWhoseContextHasEnded(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			short, cancel := context.WithCancel(ctx)
			sp, err := tx.Begin(short)
			require.NoError(t, err)
			insert(short, t, sp)
			cancel()
			assert.NoError(t, sp.Rollback(short))
			return nil
		}))
		assert.Empty(t, numbers(t, db))
	})
}

// TestASavepointThatCannotBeRolledBack makes the transaction fail: what the handler gave up must not be committed.
func TestASavepointThatCannotBeRolledBack(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		work := func(ctx context.Context, tx pgx.Tx) {
			sp, err := tx.Begin(ctx)
			require.NoError(t, err)
			insert(ctx, t, sp)
			rows, err := tx.Conn().Query(ctx, `SELECT generate_series(1, 3)`)
			require.NoError(t, err)
			defer rows.Close()
			assert.ErrorContains(t, sp.Rollback(ctx), "conn busy")
		}
		require.Error(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			work(ctx, tx)
			return nil
		}))
		assert.Empty(t, numbers(t, db), "of a handler")
		require.Error(t, outbox.InTx(t.Context(), pool, func(ctx context.Context, _ *sqlx.Tx) error {
			tx, err := pgxdb.Tx(ctx)
			require.NoError(t, err)
			work(ctx, tx)
			return nil
		}))
		assert.Empty(t, numbers(t, db), "of InTx")
	})
}

// TestAnEndedSavepoint runs nothing more, and the transaction around it goes on.
func TestAnEndedSavepoint(t *testing.T) {
	ends := map[string]func(ctx context.Context, sp pgx.Tx) error{
		"Commit":   func(ctx context.Context, sp pgx.Tx) error { return sp.Commit(ctx) },
		"Rollback": func(ctx context.Context, sp pgx.Tx) error { return sp.Rollback(ctx) },
	}
	uses := map[string]func(ctx context.Context, sp pgx.Tx) error{
		"Begin": func(ctx context.Context, sp pgx.Tx) error { _, err := sp.Begin(ctx); return err },
		"Exec": func(ctx context.Context, sp pgx.Tx) error {
			_, err := sp.Exec(ctx, `INSERT INTO work VALUES (2)`)
			return err
		},
		"Query": func(ctx context.Context, sp pgx.Tx) error {
			rows, err := sp.Query(ctx, `INSERT INTO work VALUES (3)`)
			rows.Close()
			return err
		},
		"QueryRow": func(ctx context.Context, sp pgx.Tx) error {
			return sp.QueryRow(ctx, `INSERT INTO work VALUES (4) RETURNING n`).Scan(new(int))
		},
		"Prepare": func(ctx context.Context, sp pgx.Tx) error { _, err := sp.Prepare(ctx, "late", `SELECT 1`); return err },
		"CopyFrom": func(ctx context.Context, sp pgx.Tx) error {
			_, err := sp.CopyFrom(ctx, pgx.Identifier{"work"}, []string{"n"}, pgx.CopyFromRows([][]any{{5}}))
			return err
		},
		"SendBatch": func(ctx context.Context, sp pgx.Tx) error {
			var b pgx.Batch
			b.Queue(`INSERT INTO work VALUES (6)`)
			return sp.SendBatch(ctx, &b).Close()
		},
		"Commit":   ends["Commit"],
		"Rollback": ends["Rollback"],
	}
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		for how, end := range ends {
			require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
				sp, err := tx.Begin(ctx)
				require.NoError(t, err)
				inner, err := sp.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, end(ctx, sp))
				for what, use := range uses {
					assert.ErrorIs(t, use(ctx, sp), pgx.ErrTxClosed, "%s after %s", what, how)
					assert.ErrorIs(t, use(ctx, inner), pgx.ErrTxClosed, "%s inside, after %s", what, how)
				}
				_, err = tx.Exec(ctx, `INSERT INTO work VALUES (7) ON CONFLICT DO NOTHING`)
				return err
			}))
			assert.Equal(t, []int{7}, numbers(t, db), how)
		}
	})
}

package pgxdb_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheExampleOfABatch runs it: it needs a server.
func TestTheExampleOfABatch(t *testing.T) {
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE visits (id TEXT PRIMARY KEY, page TEXT)`)
	db.Do(t, `CREATE TABLE pages (page TEXT PRIMARY KEY, visits BIGINT)`)
	t.Setenv("MILLRACE_EXAMPLE_POSTGRES", db.DSN)
	ExampleTx_batch()
	assert.Equal(t, 30, db.Count(t, `SELECT COUNT(*) FROM visits`))
	assert.Equal(t, 3, db.Count(t, `SELECT COUNT(*) FROM pages WHERE visits = 10`))
}

// TestTheCallbacksOfABatch get the results in their order, until one fails.
func TestTheCallbacksOfABatch(t *testing.T) {
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		for want, failed := range map[int]error{4: nil, 3: errors.New("it fails")} {
			require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
				var b pgx.Batch
				got := make([]int, 1, 4)
				b.Queue(`SELECT 0`).Exec(func(pgconn.CommandTag) error { panic("its result is read before") })
				b.Queue(`SELECT 1`).QueryRow(func(row pgx.Row) error { return row.Scan(&got[0]) })
				b.Queue(`SELECT 10`)
				b.Queue(`SELECT generate_series(2, 3)`).Query(func(rows pgx.Rows) error {
					all, err := pgx.CollectRows(rows, pgx.RowTo[int])
					got = append(got, all...)
					return errors.Join(err, failed)
				})
				b.Queue(`SELECT 4`).Exec(func(tag pgconn.CommandTag) error {
					got = append(got, 3+int(tag.RowsAffected()))
					return nil
				})
				results := tx.SendBatch(ctx, &b)
				_, err := results.Exec()
				require.NoError(t, err)
				for range 2 {
					require.ErrorIs(t, results.Close(), failed)
				}
				assert.Equal(t, []int{1, 2, 3, 4}[:want], got)

				var unsent pgx.Batch
				unsent.Queue(`SELECT $1::int`, struct{}{}).Query(func(pgx.Rows) error { panic("nothing was sent") })
				require.Error(t, tx.SendBatch(ctx, &unsent).Close())
				return nil
			}))
		}
	})
}

// TestACallbackThatWantsTheConnection, which its batch has, does not keep it for ever.
func TestACallbackThatWantsTheConnection(t *testing.T) {
	wants := map[string]func(ctx context.Context, sp pgx.Tx) error{
		"the savepoint's end": func(ctx context.Context, sp pgx.Tx) error { return sp.Rollback(ctx) },
		"a statement of database/sql": func(ctx context.Context, _ pgx.Tx) error {
			tx, err := inbox.Tx(ctx)
			require.NoError(t, err)
			_, err = tx.ExecContext(ctx, `SELECT 1`)
			return err
		},
	}
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		pool.SetMaxOpenConns(1)
		for what, want := range wants {
			h := handler(t, pool, inbox.ConsumerConfig{Timeout: time.Second}, func(msg *message.Message) error {
				ctx := msg.Context()
				tx, err := pgxdb.Tx(ctx)
				require.NoError(t, err)
				sp, err := tx.Begin(ctx)
				require.NoError(t, err)
				var b pgx.Batch
				b.Queue(`INSERT INTO work VALUES (1)`)
				b.Queue(`SELECT generate_series(1, 3)`).Query(func(rows pgx.Rows) error {
					require.True(t, rows.Next())
					return want(ctx, sp)
				})
				b.Queue(`SELECT 1`).Exec(func(pgconn.CommandTag) error { panic("after an error") })
				return sp.SendBatch(ctx, &b).Close()
			})
			require.Error(t, rig.Within(t, rig.Handle(h, newMessage(t)), what))
			require.NoError(t, rig.Within(t, rig.Go(func() error {
				return in(t, pool, func(context.Context, pgx.Tx) error { return nil })
			}), "the next message"))
		}
		assert.Empty(t, numbers(t, db))
	})
}

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
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// each runs a test through pgx's driver and through this package's.
func each(t *testing.T, run func(t *testing.T, db *testdb.DB, pool *sqlx.DB)) {
	t.Helper()
	t.Parallel()
	for _, driver := range []string{"pgx", "pgxdb"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres")
			db.Do(t, `CREATE TABLE work (n INT PRIMARY KEY, word TEXT)`)
			pool, err := sqlx.Open(driver, db.DSN)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, pool.Close()) })
			run(t, db, pool)
		})
	}
}

func numbers(t *testing.T, db *testdb.DB) (all []int) {
	t.Helper()
	require.NoError(t, db.SelectContext(t.Context(), &all, `SELECT n FROM work ORDER BY n`))
	return all
}

// in runs work in the transaction of a handler, and returns what the handler's message came to.
func in(t *testing.T, pool *sqlx.DB, work func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	_, err := handler(t, pool, inbox.ConsumerConfig{Timeout: time.Minute}, func(msg *message.Message) error {
		tx, err := pgxdb.Tx(msg.Context())
		if err != nil {
			return err
		}
		return work(msg.Context(), tx)
	})(newMessage(t))
	return err
}

// TestWhatPgxCanDo works in a handler's transaction.
func TestWhatPgxCanDo(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		work := func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO work VALUES ($1, @word)`, pgx.NamedArgs{"word": "a"})
			require.Error(t, err)
			return errors.Join(err, errors.New(tag.String()))
		}
		require.Error(t, in(t, pool, work))
		require.Empty(t, numbers(t, db))

		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO work VALUES (@n, @word)`, pgx.NamedArgs{"n": 1, "word": "a"})
			require.NoError(t, err)
			assert.EqualValues(t, 1, tag.RowsAffected())
			n, err := tx.CopyFrom(ctx, pgx.Identifier{"work"}, []string{"n", "word"}, pgx.CopyFromRows([][]any{{2, "b"}, {3, "c"}}))
			require.NoError(t, err)
			assert.EqualValues(t, 2, n)

			rows, err := tx.Query(ctx, `SELECT n, word FROM work ORDER BY n`)
			require.NoError(t, err)
			type row struct {
				N    int
				Word string
			}
			all, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
			require.NoError(t, err)
			assert.Equal(t, []row{{1, "a"}, {2, "b"}, {3, "c"}}, all)

			var word string
			require.NoError(t, tx.QueryRow(ctx, `SELECT word FROM work WHERE n = $1`, 2).Scan(&word))
			assert.Equal(t, "b", word)
			require.ErrorIs(t, tx.QueryRow(ctx, `SELECT word FROM work WHERE n = $1`, 20).Scan(&word), pgx.ErrNoRows)

			var batch pgx.Batch
			batch.Queue(`UPDATE work SET word = $1 WHERE n = 1`, "z")
			batch.Queue(`SELECT word FROM work ORDER BY n`)
			results := tx.SendBatch(ctx, &batch)
			_, err = results.Exec()
			require.NoError(t, err)
			rows, err = results.Query()
			require.NoError(t, err)
			words, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			assert.Equal(t, []string{"z", "b", "c"}, words)
			require.NoError(t, results.Close())

			_, err = tx.Prepare(ctx, "mine", `INSERT INTO work VALUES ($1, 'd')`)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, "mine", 4)
			require.NoError(t, err)

			failed := errors.New("this one fails")
			require.ErrorIs(t, pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
				_, err := nested.Exec(ctx, `INSERT INTO work VALUES (5, 'e')`)
				require.NoError(t, err)
				return failed
			}), failed)
			require.NoError(t, pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
				_, err := nested.Exec(ctx, `INSERT INTO work VALUES (6, 'f')`)
				return err
			}))
			var own pgx.Batch
			own.BeginTx(pgx.TxOptions{})
			own.Queue(`INSERT INTO work VALUES (7, 'g')`)
			require.ErrorIs(t, tx.SendBatch(ctx, &own).Close(), pgxdb.ErrOwned)
			require.ErrorIs(t, tx.Commit(ctx), pgxdb.ErrOwned)
			require.ErrorIs(t, tx.Rollback(ctx), pgxdb.ErrOwned)
			return nil
		}))
		assert.Equal(t, []int{1, 2, 3, 4, 6}, numbers(t, db))
	})
}

// TestABatchAndALateMessage: what the outbox stores and what pgx does are committed together, or not at all.
func TestABatchAndALateMessage(t *testing.T) {
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		out := rig.NewOutbox(t, pool, outbox.Config{})
		for i, fails := range []bool{true, false} {
			err := in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
				m := message.NewMessage("announced", nil)
				m.SetContext(ctx)
				if err := out.Publish("orders", m); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `INSERT INTO work VALUES ($1)`, i); err != nil {
					return err
				}
				if fails {
					return errors.New("it fails")
				}
				return nil
			})
			require.Equal(t, fails, err != nil, "%v", err)
		}
		var stored int
		require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT COUNT(*) FROM millrace_outbox`))
		assert.Equal(t, 1, stored)
		assert.Equal(t, []int{1}, numbers(t, db))
	})
}

// TestOpenRows do not let another call wait for ever.
func TestOpenRows(t *testing.T) {
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 3)`)
			require.NoError(t, err)
			require.True(t, rows.Next())
			_, err = tx.Exec(ctx, `SELECT 1`)
			require.ErrorIs(t, err, pgxdb.ErrBusy)
			_, err = tx.Query(ctx, `SELECT 1`) //nolint:sqlclosecheck // there are none
			require.ErrorIs(t, err, pgxdb.ErrBusy)
			require.ErrorIs(t, tx.SendBatch(ctx, &pgx.Batch{}).Close(), pgxdb.ErrBusy)
			rows.Close()
			_, err = tx.Exec(ctx, `SELECT 1`)
			return err
		}))
		require.NoError(t, in(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
			require.NoError(t, err)
			require.True(t, rows.Next()) // and forgets to close them
			return inbox.SetResult(ctx, "stored before COMMIT")
		}), "Timeout ended it")
	})
}

// TestOpenRowsAndTheOutbox: publishing while rows are open is an error. Rows and batches that are left open do not let the
// end of the transaction wait for ever.
func TestOpenRowsAndTheOutbox(t *testing.T) {
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		out := rig.NewOutbox(t, pool, outbox.Config{})
		inTx := func(work func(ctx context.Context, tx pgx.Tx) error) error {
			return rig.Within(t, rig.Go(func() error {
				return outbox.InTx(t.Context(), pool, func(ctx context.Context, _ *sqlx.Tx) error {
					tx, err := pgxdb.Tx(ctx)
					if err != nil {
						return err
					}
					return work(ctx, tx)
				})
			}), "the end of the transaction")
		}
		require.ErrorIs(t, inTx(func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 3)`)
			if err != nil {
				return err
			}
			defer rows.Close()
			m := message.NewMessage("announced", nil)
			m.SetContext(ctx)
			return out.Publish("orders", m)
		}), pgxdb.ErrBusy)
		failed := errors.New("it fails")
		for _, result := range []error{nil, failed} {
			require.ErrorIs(t, inTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `SELECT generate_series(1, 3)`) //nolint:rowserrcheck,sqlclosecheck // it is left open
				return errors.Join(err, result)
			}), result)
			var called bool
			require.ErrorIs(t, inTx(func(ctx context.Context, tx pgx.Tx) error {
				var b pgx.Batch
				b.Queue(`SELECT 1`).Exec(func(pgconn.CommandTag) error { called = true; return nil })
				_ = tx.SendBatch(ctx, &b) // it is left open
				return result
			}), result)
			assert.False(t, called, "beside the handler")
		}
	})
}

// TestTheContextEnds while rows are read: database/sql rolls back meanwhile.
func TestTheContextEnds(t *testing.T) {
	const many = `SELECT 1 FROM pg_class a, pg_class b, pg_class c`
	sends := map[string]func(ctx context.Context, tx pgx.Tx) (pgx.Rows, error){
		"of a query": func(ctx context.Context, tx pgx.Tx) (pgx.Rows, error) { return tx.Query(ctx, many) },
		"of a batch": func(ctx context.Context, tx pgx.Tx) (pgx.Rows, error) {
			var b pgx.Batch
			b.Queue(many)
			return tx.SendBatch(ctx, &b).Query()
		},
	}
	each(t, func(t *testing.T, db *testdb.DB, pool *sqlx.DB) {
		for what, send := range sends {
			for range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				err := outbox.InTx(ctx, pool, func(ctx context.Context, _ *sqlx.Tx) error {
					tx, err := pgxdb.Tx(ctx)
					require.NoError(t, err)
					_, err = tx.Exec(ctx, `INSERT INTO work VALUES (1)`)
					require.NoError(t, err)
					rows, err := send(ctx, tx)
					if err != nil {
						return err
					}
					time.AfterFunc(time.Millisecond, cancel)
					for rows.Next() {
						_, _ = rows.Values()
					}
					assert.Error(t, rows.Err(), "rows %s", what)
					return nil
				})
				require.Error(t, err)
				cancel()
			}
		}
		assert.Empty(t, numbers(t, db))
	})
}

// TestRowsThatAreCutShort say so, also where all of them had arrived.
func TestRowsThatAreCutShort(t *testing.T) {
	each(t, func(t *testing.T, _ *testdb.DB, pool *sqlx.DB) {
		for _, batched := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			require.Error(t, outbox.InTx(ctx, pool, func(txCtx context.Context, _ *sqlx.Tx) error {
				tx, err := pgxdb.Tx(txCtx)
				require.NoError(t, err)
				var b pgx.Batch
				b.Queue(`SELECT 0`)
				b.Queue(`SELECT generate_series(1, 3)`)
				var rows pgx.Rows
				own := context.WithoutCancel(ctx) // so that pgx leaves the connection as it is
				if batched {
					results := tx.SendBatch(own, &b)
					read, err := results.Query()
					require.NoError(t, err)
					all, err := pgx.CollectRows(read, pgx.RowTo[int])
					require.NoError(t, err)
					assert.Equal(t, []int{0}, all)
					defer func() {
						require.NoError(t, read.Err(), "these were read")
						require.ErrorIs(t, results.Close(), context.Canceled)
					}()
					rows, err = results.Query()
					require.NoError(t, err)
				} else {
					rows, err = tx.Query(own, b.QueuedQueries[1].SQL)
					require.NoError(t, err)
				}
				require.True(t, rows.Next())
				cancel()
				rig.Eventually(t, "the rows are closed", func() bool { _, err := rows.Values(); return err != nil })
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
				require.ErrorIs(t, err, context.Canceled)
				return nil
			}))
		}
	})
}

// TestATransactionOfPgx stores messages.
func TestATransactionOfPgx(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	out := rig.NewOutbox(t, newPool(t, db), outbox.Config{})
	conn, err := pgx.Connect(t.Context(), db.DSN)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	for _, commits := range []bool{false, true} {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		ctx := outbox.WithTx(t.Context(), pgxdb.ForOutbox(tx))
		m := message.NewMessage("announced", nil)
		m.SetContext(ctx)
		require.NoError(t, out.Publish("orders", m))
		if commits {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
			require.ErrorIs(t, out.Publish("orders", m), outbox.ErrTxEnded)
		}
	}
	var stored int
	require.NoError(t, db.GetContext(t.Context(), &stored, `SELECT COUNT(*) FROM millrace_outbox`))
	assert.Equal(t, 1, stored)
}

// TestAnotherDriver is told from pgx.
func TestAnotherDriver(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	require.ErrorContains(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
		_, err := pgxdb.Tx(ctx)
		return err
	}), "another driver than pgx")
	_, err := pgxdb.Tx(t.Context())
	require.ErrorIs(t, err, inbox.ErrNoTx)
	assert.Nil(t, pgxdb.ForOutbox(nil))
}

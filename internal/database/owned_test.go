package database_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// begin begins a transaction as the store does: guarded on SQLite.
func begin(ctx context.Context, db *sqlx.DB) (*owned.Tx, error) {
	return owned.Begin(ctx, db, nil, db.DriverName() == "sqlite")
}

func newTable(t *testing.T, db *sqlx.DB) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `CREATE TABLE work (n INT)`)
	require.NoError(t, err)
}

func written(t *testing.T, db *sqlx.DB) (n int) {
	t.Helper()
	require.NoError(t, db.GetContext(context.WithoutCancel(t.Context()), &n, `SELECT COUNT(*) FROM work`))
	return n
}

func work(ctx context.Context, tx *owned.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO work VALUES (1)`)
	return err
}

func idle(t *testing.T, db *sqlx.DB) {
	t.Helper()
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, rig.Patience, time.Millisecond, "a connection is in use")
}

// within fails where f takes long: it waits for what does not come.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(rig.Patience):
		require.FailNow(t, what+" hangs")
	}
}

func TestCommitAndRollback(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		for _, commits := range []bool{true, false} {
			tx, err := begin(t.Context(), db.DB)
			require.NoError(t, err)
			require.NoError(t, work(t.Context(), tx))
			assert.False(t, tx.Ended() || tx.Lost() || tx.Refused())
			if commits {
				require.NoError(t, tx.Commit())
			} else {
				require.NoError(t, tx.Rollback())
			}
			require.NoError(t, tx.Rollback(), "it is over")
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
			idle(t, db.DB)
		}
		assert.Equal(t, 1, written(t, db.DB))
		assert.Equal(t, 1, db.Stats().OpenConnections, "the connection goes back to the pool")
	})
}

// TestASessionThatSomebodyElseUsedUp: a statement that ended the transaction, and what came after it, may have left the
// session with locks and settings.
func TestASessionThatSomebodyElseUsedUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		statements := map[string][]string{
			"mysql":    {`LOCK TABLES work READ`},
			"postgres": {`COMMIT`, `SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY`},
		}[db.Dialect]
		if statements == nil || db.Driver == "postgres" {
			t.Log("it cannot be used up, or the driver does not tell")
			return
		}
		newTable(t, db.DB)
		db.SetMaxOpenConns(1)
		tx, err := begin(t.Context(), db.DB)
		require.NoError(t, err)
		for _, statement := range statements {
			_, err := tx.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		require.NoError(t, tx.Rollback())
		db.Do(t, `INSERT INTO work VALUES (1)`)
		db.Do(t, `CREATE TABLE more (n INT)`)
		assert.Equal(t, 0, db.Count(t, `SELECT COUNT(*) FROM more`))
	})
}

// TestRollbackDoesNotWaitForTheServer: when the context has ended, somebody else rolls back, and a
// server that does not answer keeps nobody.
func TestRollbackDoesNotWaitForTheServer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		if db.Dialect == "sqlite" {
			return // which answers; its connection is free when it has
		}
		newTable(t, db.DB)
		for name, end := range map[string]func(*owned.Tx) error{
			"Rollback": (*owned.Tx).Rollback, "Commit": (*owned.Tx).Commit,
		} {
			pool := faults.Open(t, db)
			asked, answer := make(chan struct{}), make(chan struct{})
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if call == faults.Rollback {
					close(asked)
					<-answer
				}
				return nil
			}})
			ctx, cancel := context.WithCancel(t.Context())
			tx, err := begin(ctx, pool.DB)
			require.NoError(t, err)
			require.NoError(t, work(ctx, tx))
			cancel() // outside of a statement
			<-asked
			within(t, name, func() {
				if err := end(tx); name == "Commit" {
					assert.Error(t, err)
				} else {
					assert.NoError(t, err)
				}
			})
			assert.Equal(t, 1, pool.Stats().InUse, "nobody else has the connection meanwhile")
			assert.False(t, tx.Ended(), "it asks nobody")
			close(answer)
			idle(t, pool.DB)
			assert.Equal(t, 0, pool.Stats().OpenConnections, "it is not used again")
			assert.Equal(t, 0, written(t, db.DB))
		}
	})
}

// TestTheContextEndsTheTransaction, whatever its user does.
func TestTheContextEndsTheTransaction(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		db.SetMaxOpenConns(1)
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := begin(ctx, db.DB)
		require.NoError(t, err)
		require.NoError(t, work(ctx, tx))
		cancel()
		idle(t, db.DB) // though nobody has rolled back
		err = tx.Commit()
		require.ErrorIs(t, err, sql.ErrTxDone)
		require.ErrorIs(t, err, context.Canceled, "why")
		require.NoError(t, tx.Rollback())
		assert.Equal(t, 0, written(t, db.DB))
	})
}

// TestACommitAfterTheContextEnded commits nothing, also where the context ends just before.
func TestACommitAfterTheContextEnded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			tx, err := begin(ctx, db.DB)
			require.NoError(t, err)
			require.NoError(t, work(ctx, tx))
			cancel()
			require.Error(t, tx.Commit())
			require.NoError(t, tx.Rollback())
		}
		idle(t, db.DB)
		assert.Equal(t, 0, written(t, db.DB))
	})
}

// TestBeginWhileTheContextEnds holds no connection afterwards.
func TestBeginWhileTheContextEnds(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(1)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := begin(over, pool.DB)
		require.ErrorIs(t, err, context.Canceled)
		for name, plan := range map[string]func(context.CancelFunc) faults.Plan{
			"before BEGIN": func(cancel context.CancelFunc) faults.Plan {
				return faults.Plan{Before: at(faults.Begin, cancel)}
			},
			"after BEGIN": func(cancel context.CancelFunc) faults.Plan {
				return faults.Plan{After: at(faults.Begin, cancel)}
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			pool.Set(plan(cancel))
			tx, err := begin(ctx, pool.DB)
			if err == nil { // then it is rolled back at once
				require.Error(t, tx.Commit(), name)
			}
			idle(t, pool.DB)
			pool.Set(faults.Plan{})
			within(t, name, func() {
				tx, err := begin(t.Context(), pool.DB)
				if assert.NoError(t, err, name) {
					assert.NoError(t, work(t.Context(), tx), name)
					assert.NoError(t, tx.Rollback(), name)
				}
			})
		}
		idle(t, pool.DB)
		assert.Equal(t, 0, written(t, db.DB))
	})
}

func at(call string, do func()) func(context.Context, string) error {
	return func(_ context.Context, c string) error {
		if c == call {
			do()
		}
		return nil
	}
}

// TestBeginTakesAnotherConnection for each that died in the pool, and does not try for ever.
func TestBeginTakesAnotherConnection(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		const pooled = 4
		pool := faults.Open(t, db)
		pool.SetMaxIdleConns(pooled)
		var open []*sqlx.Conn
		for range pooled {
			c, err := pool.Connx(t.Context())
			require.NoError(t, err)
			open = append(open, c)
		}
		for _, c := range open {
			require.NoError(t, c.Close())
		}
		var tried atomic.Int32
		dead := func(n int32) {
			tried.Store(0)
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if call == faults.Begin && tried.Add(1) <= n {
					return driver.ErrBadConn
				}
				return nil
			}})
		}
		dead(pooled)
		tx, err := begin(t.Context(), pool.DB)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		assert.EqualValues(t, pooled+1, tried.Load())

		dead(1000)
		_, err = begin(t.Context(), pool.DB)
		require.ErrorIs(t, err, driver.ErrBadConn)
		assert.Less(t, tried.Load(), int32(20))
		ctx, cancel := context.WithCancel(t.Context())
		pool.Set(faults.Plan{Before: func(context.Context, string) error { cancel(); return driver.ErrBadConn }})
		_, err = begin(ctx, pool.DB)
		require.Error(t, err)
		idle(t, pool.DB)
	})
}

var errFails = errors.New("it fails")

// TestAConnectionInDoubtIsNotUsedAgain: what a failed COMMIT left open is never committed.
func TestAConnectionInDoubtIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(1)
		pool.Set(faults.Plan{Stays: func(context.Context) error { return errFails }})
		tx, err := begin(t.Context(), pool.DB)
		require.NoError(t, err)
		require.NoError(t, work(t.Context(), tx))
		require.ErrorIs(t, tx.Commit(), errFails)
		require.NoError(t, tx.Rollback(), "it is over")
		pool.Set(faults.Plan{})
		for range 2 {
			tx, err = begin(t.Context(), pool.DB)
			require.NoError(t, err)
			require.NoError(t, work(t.Context(), tx))
			require.NoError(t, tx.Commit())
		}
		assert.Equal(t, 2, written(t, db.DB))
	})
}

// TestARollbackThatFails is told, and its connection is not used again.
func TestARollbackThatFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(1)
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == faults.Rollback {
				return errFails
			}
			return nil
		}})
		tx, err := begin(t.Context(), pool.DB)
		require.NoError(t, err)
		err = tx.Rollback()
		if db.Dialect == "sqlite" {
			require.ErrorIs(t, err, errFails)
		} else {
			require.NoError(t, err, "the server has told that it ended")
		}
		pool.Set(faults.Plan{})
		tx, err = begin(t.Context(), pool.DB)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		idle(t, pool.DB)
	})
}

// TestEnded: the owner learns from what the driver was told that a statement ended the transaction.
func TestEnded(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		for name, wrap := range wrappers {
			pool := wrapped(t, db, wrap)
			for _, statement := range []string{"COMMIT", "ROLLBACK"} {
				tx, err := begin(t.Context(), pool)
				require.NoError(t, err, name)
				require.NoError(t, work(t.Context(), tx))
				require.False(t, tx.Ended(), name)
				_, err = tx.ExecContext(t.Context(), statement)
				switch db.Dialect {
				case "sqlite": // which is guarded instead
					assert.Equal(t, statement == "COMMIT", err != nil, name)
					assert.True(t, tx.Lost(), "%s, %s", name, statement)
					assert.Equal(t, statement == "COMMIT", tx.Refused(), name)
					require.ErrorIs(t, tx.Commit(), owned.ErrLost, name)
				default:
					require.NoError(t, err)
					assert.True(t, tx.Ended(), "%s, %s", name, statement)
					_ = tx.Rollback() // which some drivers refuse then
				}
				idle(t, pool)
			}
			require.NoError(t, pool.Close())
		}
	})
}

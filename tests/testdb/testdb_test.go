package testdb_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestEachGivesAFreshDatabase(t *testing.T) {
	for range 3 { // the third finds what the second left where a name was cut short
		testdb.Each(t, func(t *testing.T, db *testdb.DB) {
			db.Do(t, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
		})
	}
}

func TestOpenSharesTheDatabase(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db.Do(t, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
		other := db.Open(t, testdb.Pool(1))
		assert.Equal(t, 1, other.Stats().MaxOpenConnections)
		other.Do(t, "INSERT INTO things VALUES (1)")
		assert.Equal(t, 1, db.Count(t, "SELECT COUNT(*) FROM things"))
	})
}

// What a test leaves behind is not there for the next one, which may be lent the same database.
func TestADatabaseIsLikeNew(t *testing.T) {
	for _, left := range []string{
		"CREATE TABLE things (id INTEGER PRIMARY KEY)",
		"CREATE VIEW things AS SELECT * FROM millrace_schema",
		"CREATE INDEX things ON millrace_audit (at)",
		"ALTER TABLE millrace_audit ADD COLUMN things INTEGER",
		"DROP TABLE millrace_blobs",
		"DELETE FROM millrace_schema",
		audited,
	} {
		for _, dialect := range testdb.Dialects() {
			t.Run(dialect+": "+left, func(t *testing.T) {
				t.Run("a test", func(t *testing.T) {
					db := testdb.On(t, dialect)
					db.Do(t, left)
					leaveTransactionOpen(t, db)
				})
				assertLikeNew(t, testdb.On(t, dialect))
			})
		}
	}
}

const audited = `INSERT INTO millrace_audit (at, actor, action, reason, consumer, message_id, detail)
	VALUES (1, '', '', '', 1, '', '')`

func assertLikeNew(t *testing.T, db *testdb.DB) {
	t.Helper()
	for _, missing := range []string{"SELECT 1 FROM things", "SELECT things FROM millrace_audit"} {
		_, err := db.ExecContext(t.Context(), missing)
		require.Error(t, err, missing)
	}
	db.Do(t, "CREATE INDEX things ON millrace_audit (at)")
	db.Do(t, audited)
	assert.Equal(t, 1, db.Count(t, "SELECT SUM(id) FROM millrace_audit"))
	assert.NotZero(t, db.Count(t, "SELECT MAX(version) FROM millrace_schema"))
}

// A connection that is made when the test that wanted it has given up is the next test's.
func TestAConnectionThatNobodyWaitsFor(t *testing.T) {
	for i := range 20 {
		t.Run("a test", func(t *testing.T) {
			db := testdb.On(t, "postgres")
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
			defer cancel()
			var wanted sync.WaitGroup
			for range 4 {
				wanted.Go(func() { _ = db.PingContext(ctx) })
			}
			wanted.Wait()
		})
		t.Run("the next", func(t *testing.T) {
			db := testdb.On(t, "postgres")
			for range 10 {
				conn, err := db.Connx(t.Context())
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				_, err = conn.ExecContext(t.Context(), "SELECT 1")
				require.NoError(t, err)
			}
			db.Disconnect()
		})
	}
}

// leaveTransactionOpen holds locks that nobody will release, as a process that hangs does.
func leaveTransactionOpen(t *testing.T, db *testdb.DB) {
	t.Helper()
	tx, err := db.Open(nestedNever{t}).Begin() // it outlives t.Context
	require.NoError(t, err)
	_, err = tx.Exec("DELETE FROM millrace_dropped")
	require.NoError(t, err)
}

// nestedNever drops the cleanups, as a process that hangs would.
type nestedNever struct{ testing.TB }

func (nestedNever) Cleanup(func()) {}

func TestParamsReachTheDriver(t *testing.T) {
	db := testdb.On(t, "mysql")
	db.Do(t, "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)")
	db.Do(t, "INSERT INTO things VALUES (1, 7)")
	for value, want := range map[string]int64{"false": 0, "true": 1} {
		pool := db.Open(t, testdb.Params("clientFoundRows", value))
		res, err := pool.ExecContext(t.Context(), "UPDATE things SET n = 7")
		require.NoError(t, err)
		n, err := res.RowsAffected()
		require.NoError(t, err)
		assert.Equal(t, want, n, "clientFoundRows=%s", value)
	}
}

func TestFrozenHostsSetsTheServerLimits(t *testing.T) {
	frozen := testdb.FrozenHosts(1500*time.Millisecond, 2500*time.Millisecond)
	t.Run("postgres", func(t *testing.T) {
		db := testdb.On(t, "postgres", frozen)
		assert.Equal(t, "1500ms", show(t, db, "SHOW idle_in_transaction_session_timeout"))
		assert.Equal(t, "2500ms", show(t, db, "SHOW lock_timeout"))
	})
	t.Run("mysql", func(t *testing.T) {
		db := testdb.On(t, "mysql", frozen)
		assert.Equal(t, "2", show(t, db, "SELECT @@"+db.Variable("idle_write_transaction_timeout")))
		assert.Equal(t, "3", show(t, db, "SELECT @@innodb_lock_wait_timeout"))
	})
	t.Run("sqlite", func(t *testing.T) {
		require.NoError(t, testdb.On(t, "sqlite", frozen).PingContext(t.Context()))
	})
}

func TestSQLiteIsDurableAndConcurrent(t *testing.T) {
	db := testdb.On(t, "sqlite")
	assert.Equal(t, "wal", show(t, db, "PRAGMA journal_mode"))
	assert.Equal(t, "2", show(t, db, "PRAGMA synchronous"))
	assert.Equal(t, "10000", show(t, db, "PRAGMA busy_timeout"))
}

func show(t *testing.T, db *testdb.DB, query string) (value string) {
	t.Helper()
	require.NoError(t, db.GetContext(t.Context(), &value, query))
	return value
}

func TestConformanceRunsEveryBodyEverywhere(t *testing.T) {
	var first, second atomic.Int32
	count := func(n *atomic.Int32) func(*testing.T, *testdb.DB) {
		return func(_ *testing.T, db *testdb.DB) {
			if db.Dialect == "sqlite" { // which is never missing
				n.Add(1)
			}
		}
	}
	t.Run("bodies", func(t *testing.T) {
		testdb.Conformance(t, []testdb.Body{
			{Name: "first", Why: "-", Run: count(&first)},
			{Name: "second", Why: "-", Run: count(&second)},
		})
	})
	assert.EqualValues(t, 1, first.Load())
	assert.EqualValues(t, 1, second.Load())
}

func BenchmarkEach(b *testing.B) {
	testdb.Each(b, func(b *testing.B, db *testdb.DB) {
		for b.Loop() {
			var one int
			require.NoError(b, db.GetContext(b.Context(), &one, "SELECT 1"))
		}
	})
}

// A consumer that runs beside a test may end up in a deadlock with what the test changes itself.
func TestDoIsCarriedOutAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	db.Do(t, `CREATE TABLE things (id INT PRIMARY KEY, n INT NOT NULL)`)
	db.Do(t, `INSERT INTO things VALUES (1, 0), (2, 0), (3, 0), (4, 0)`)
	tx, err := db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, id := range []int{4, 3, 2} { // it has written more, so the other is ended
		_, err = tx.Exec(`UPDATE things SET n = 10 WHERE id = ?`, id)
		require.NoError(t, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.Do(t, `UPDATE things SET n = n + 1 ORDER BY id`)
	}()
	assert.Eventually(t, func() bool {
		var free []int
		return assert.NoError(t, db.Select(&free, `SELECT id FROM things WHERE id = 1 FOR UPDATE SKIP LOCKED`)) && len(free) == 0
	}, time.Minute, time.Millisecond, "the other has the first row")
	_, err = tx.Exec(`UPDATE things SET n = 10 WHERE id = 1`)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	<-done
	assert.Equal(t, 44, db.Count(t, `SELECT SUM(n) FROM things`))
}

package tests_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// classified is what the dialect makes of an error that must have happened.
func classified(t *testing.T, err error) dialect.Kind {
	t.Helper()
	require.Error(t, err)
	t.Logf("%T: %v", err, err)
	return dialect.Classify(fmt.Errorf("wrapped: %w", err))
}

// TestErrorsOfGalera: a node that is cut off answers so, the second at COMMIT.
func TestErrorsOfGalera(t *testing.T) {
	t.Parallel()
	for _, number := range []uint16{1047, 1180} {
		assert.Equal(t, dialect.Unavailable, dialect.Classify(&mysql.MySQLError{Number: number}), "%d", number)
	}
}

func TestErrorsAreKnownForWhatTheyAre(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db.Do(t, `CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)`)
		db.Do(t, `INSERT INTO things VALUES (1, 0), (2, 0)`)

		_, err := db.ExecContext(t.Context(), `SELECT 1 FROM absent`)
		assert.Equal(t, dialect.NoTable, classified(t, err), "missing table")
		_, err = db.ExecContext(t.Context(), `UPDATE things SET missing = 1`)
		assert.Equal(t, dialect.NoTable, classified(t, err), "missing column")
		_, err = db.ExecContext(t.Context(), `INSERT INTO things VALUES (1, 0)`)
		assert.Equal(t, dialect.Other, classified(t, err), "duplicate")
		_, err = db.ExecContext(t.Context(), `nonsense`)
		assert.Equal(t, dialect.Other, classified(t, err), "syntax")

		t.Run("read-only", func(t *testing.T) {
			params := map[string][]string{
				"postgres": {"default_transaction_read_only", "on"}, "mysql": {"tx_read_only", "1"},
				"sqlite": {"_pragma", "query_only(1)"},
			}
			_, err := db.Open(t, testdb.Params(params[db.Dialect]...)).ExecContext(t.Context(), `UPDATE things SET n = 1`)
			assert.Equal(t, dialect.ReadOnly, classified(t, err))
		})
		t.Run("lock wait", func(t *testing.T) {
			shorten := map[string]string{
				"postgres": `SET lock_timeout = 50`, "mysql": `SET innodb_lock_wait_timeout = 1`,
				"sqlite": `PRAGMA busy_timeout = 50`,
			}
			waiter := db.Open(t, testdb.Pool(1))
			waiter.Do(t, shorten[db.Dialect])
			holder := begin(t, db)
			_, err := holder.ExecContext(t.Context(), `UPDATE things SET n = 1 WHERE id = 1`)
			require.NoError(t, err)
			_, err = waiter.ExecContext(t.Context(), `UPDATE things SET n = 2 WHERE id = 1`)
			assert.Equal(t, dialect.Contention, classified(t, err))
			require.NoError(t, holder.Rollback())
		})
		t.Run("limit of a statement", func(t *testing.T) {
			limit := map[string]string{"postgres": `SET statement_timeout = 50`, "mysql": `SET max_statement_time = 0.05`}[db.Dialect]
			if limit == "" || db.MySQL() {
				return // MySQL has one for reads alone
			}
			waiter := db.Open(t, testdb.Pool(1))
			waiter.Do(t, limit)
			holder := begin(t, db)
			_, err := holder.ExecContext(t.Context(), `UPDATE things SET n = 1 WHERE id = 1`)
			require.NoError(t, err)
			_, err = waiter.ExecContext(t.Context(), `UPDATE things SET n = 2 WHERE id = 1`)
			assert.Equal(t, dialect.Other, classified(t, err))
			assert.True(t, dialect.Cut(fmt.Errorf("wrapped: %w", err)))
			require.NoError(t, holder.Rollback())
		})
		if db.Dialect == "sqlite" {
			return // it has no deadlocks between writers, and no connections to lose
		}
		t.Run("deadlock", func(t *testing.T) {
			update := func(tx *sqlx.Tx, id int) error {
				_, err := tx.ExecContext(t.Context(), fmt.Sprintf(`UPDATE things SET n = n + 1 WHERE id = %d`, id))
				return err
			}
			one, other := begin(t, db), begin(t, db)
			require.NoError(t, update(one, 1))
			require.NoError(t, update(other, 2))
			crossed := rig.Go(func() error { return update(one, 2) })
			err := update(other, 1)
			if err == nil {
				require.NoError(t, other.Rollback())
				err = <-crossed
			} else {
				require.NoError(t, other.Rollback())
				require.NoError(t, <-crossed)
			}
			assert.Equal(t, dialect.Contention, classified(t, err))
			_ = one.Rollback() // it may be the victim
		})
		t.Run("killed connection", func(t *testing.T) {
			victim := begin(t, db)
			ask := map[string]string{"postgres": `SELECT pg_backend_pid()`, "mysql": `SELECT CONNECTION_ID()`}
			kill := map[string]string{"postgres": `SELECT pg_terminate_backend(%d)`, "mysql": `KILL %d`}
			var id int64
			require.NoError(t, victim.GetContext(t.Context(), &id, ask[db.Dialect]))
			db.Do(t, fmt.Sprintf(kill[db.Dialect], id))
			assert.Equal(t, dialect.Unavailable, classified(t, victim.GetContext(t.Context(), &id, ask[db.Dialect])))
			assert.Equal(t, dialect.Unavailable, classified(t, victim.Commit()))
		})
		t.Run("no such database", func(t *testing.T) {
			name := regexp.MustCompile(`/millrace_\w+`)
			require.Regexp(t, name, db.DSN)
			elsewhere, err := sqlx.Open(db.Driver, name.ReplaceAllString(db.DSN, "/millrace_absent"))
			require.NoError(t, err)
			assert.Equal(t, dialect.Unavailable, classified(t, elsewhere.PingContext(t.Context())))
			require.NoError(t, elsewhere.Close())
		})
	})
}

func begin(t *testing.T, db *testdb.DB) *sqlx.Tx {
	t.Helper()
	tx, err := db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // over by then, unless the test failed
	return tx
}

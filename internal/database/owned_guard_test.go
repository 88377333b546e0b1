package database_test

import (
	"database/sql/driver"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/millrace-go/millrace/internal/owned"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestWhatIsWrittenAfterALoss does not stay on SQLite, by whatever name it is committed.
func TestWhatIsWrittenAfterALoss(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	newTable(t, db.DB)
	for name, wrap := range wrappers {
		pool := wrapped(t, db, wrap)
		tx, err := begin(t.Context(), pool)
		require.NoError(t, err, name)
		require.NoError(t, work(t.Context(), tx))
		_, err = tx.ExecContext(t.Context(), `ROLLBACK`)
		require.NoError(t, err, name)
		require.Error(t, work(t.Context(), tx), name)
		assert.True(t, tx.Refused(), name)
		require.ErrorIs(t, tx.Commit(), owned.ErrLost, name)
		assert.Equal(t, 0, written(t, db.DB), name)
		_, err = pool.ExecContext(t.Context(), `DELETE FROM work`)
		require.NoError(t, err, "%s: the next user of the connection is free", name)
		require.NoError(t, pool.Close())
	}
}

// TestAHookInThePlaceOfOurs is found at the next COMMIT, and ours is back for the next transaction.
func TestAHookInThePlaceOfOurs(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	db.SetMaxOpenConns(1)
	newTable(t, db.DB)
	guarded := func() (refused bool) {
		tx, err := begin(t.Context(), db.DB)
		require.NoError(t, err)
		require.NoError(t, work(t.Context(), tx))
		_, err = tx.ExecContext(t.Context(), `COMMIT`)
		_ = tx.Rollback()
		return err != nil
	}
	require.True(t, guarded())
	conn, err := db.Connx(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Raw(func(c any) error {
		c.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 { return 0 })
		return nil
	}))
	require.NoError(t, conn.Close())
	tx, err := begin(t.Context(), db.DB)
	require.NoError(t, err)
	require.NoError(t, work(t.Context(), tx))
	require.NoError(t, tx.Commit())
	assert.Equal(t, 1, written(t, db.DB))
	assert.True(t, guarded())
	assert.Equal(t, 1, written(t, db.DB))
}

// TestAConnectionThatHidesItself cannot be guarded, nor asked.
func TestAConnectionThatHidesItself(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		newTable(t, db.DB)
		hidden := map[string]func(driver.Conn) driver.Conn{
			"nothing is shown": func(c driver.Conn) driver.Conn { return hiding{c} },
			"it goes too deep": func(c driver.Conn) driver.Conn {
				for range 9 {
					c = raw{hiding{c}}
				}
				return c
			},
			"it wraps nothing": func(c driver.Conn) driver.Conn { return empty{hiding{c}} },
		}
		for name, wrap := range hidden {
			pool := wrapped(t, db, wrap)
			if db.Dialect == "sqlite" {
				require.ErrorIs(t, owned.Guarded(t.Context(), pool), owned.ErrNoHook, name)
				_, err := begin(t.Context(), pool)
				require.ErrorIs(t, err, owned.ErrNoHook, name)
				idle(t, pool)
				continue
			}
			tx, err := begin(t.Context(), pool)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), `COMMIT`)
			require.NoError(t, err)
			assert.False(t, tx.Ended(), name)
			require.NoError(t, tx.Rollback())
		}
	})
	db := testdb.On(t, "sqlite")
	require.NoError(t, owned.Guarded(t.Context(), db.DB))
}

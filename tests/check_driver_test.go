package tests_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestCheckRefusesADriverThatKeepsFailedCommits: a COMMIT that fails must end the transaction.
func TestCheckRefusesADriverThatKeepsFailedCommits(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	migrate(t, db, inbox.Config{})
	pool := faults.Open(t, db)
	store := rig.NewStore(t, pool.DB, inbox.Config{})
	found, err := store.Check(t.Context())
	require.NoError(t, err)
	assert.Empty(t, found)

	pool.Set(stays())
	found, err = store.Check(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"error driver"}, subjects(found))
	assert.Contains(t, found[0].Problem, "COMMIT failed")
	router := (&bed{T: t, store: store}).router()
	require.ErrorContains(t, router.Run(t.Context()), "driver")

	pool.Set(faults.Plan{})
	var keys, tables int
	require.NoError(t, pool.GetContext(t.Context(), &keys, `PRAGMA foreign_keys`))
	require.NoError(t, pool.GetContext(t.Context(), &tables, `SELECT COUNT(*) FROM temp.sqlite_master`))
	assert.Zero(t, keys+tables, "Check left something behind")
}

// TestCheckRefusesADriverWithoutAHook: without one, writes after a loss would stay.
func TestCheckRefusesADriverWithoutAHook(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	b := newBed(t, db)
	for name, wrap := range map[string]func(driver.Conn) driver.Conn{
		"hidden": func(c driver.Conn) driver.Conn { return &hiding{inner: c} },
		"Raw":    func(c driver.Conn) driver.Conn { return &telling{hiding{inner: c}} },
	} {
		pool := sqlx.NewDb(sql.OpenDB(&wrapping{driver: db.DB.Driver(), dsn: db.DSN, wrap: wrap}), "sqlite")
		t.Cleanup(func() { _ = pool.Close() })
		store := b.newStore(pool, inbox.Config{})
		found, err := store.Check(t.Context())
		require.NoError(t, err)
		msg := newMessage(name)
		_, err = b.inbox(effect, on(store))(msg)
		if name == "Raw" {
			assert.Empty(t, found)
			require.NoError(t, err)
			assert.Equal(t, 1, b.effectsOf(msg.UUID))
			continue
		}
		assert.Equal(t, []string{"error driver"}, subjects(found))
		require.ErrorContains(t, err, "no commit hook")
		assert.Equal(t, 0, b.effectsOf(msg.UUID))
	}
}

// wrapping opens connections that something stands around, as a tracer does.
type wrapping struct {
	driver driver.Driver
	dsn    string
	wrap   func(driver.Conn) driver.Conn
}

func (w *wrapping) Connect(context.Context) (driver.Conn, error) {
	inner, err := w.driver.Open(w.dsn)
	if err != nil {
		return nil, err
	}
	return w.wrap(inner), nil
}

func (w *wrapping) Driver() driver.Driver { return w.driver }

// hiding says nothing of the connection that it wraps.
type hiding struct{ inner driver.Conn }

func (h *hiding) Prepare(query string) (driver.Stmt, error) { return h.inner.Prepare(query) }
func (h *hiding) Close() error                              { return h.inner.Close() }
func (h *hiding) Begin() (driver.Tx, error)                 { return h.inner.Begin() } //nolint:staticcheck // what a driver must have

// telling has the method that tracers have.
type telling struct{ hiding }

func (h *telling) Raw() driver.Conn { return h.inner }

package tests_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// failedCommitBodies: a COMMIT that fails and leaves the transaction open.
var failedCommitBodies = []testdb.Body{
	{Name: "a failed COMMIT of a claim", Why: "its connection comes back without the transaction, or not at all", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		pool.SetMaxOpenConns(1)
		store := b.newStore(pool.DB, inbox.Config{})
		redelivered := func(i *millrace.Inbox) { i.Redelivered = func(*message.Message) bool { return true } }
		msg := newMessage("x")
		must(t, b.inbox(effect, on(store)), newMessage("first")) // the consumer is known
		pool.Set(stays())
		rig.MustFail(t, b.inbox(effect, on(store)), again(msg), errStays)
		pool.Set(faults.Plan{})
		_, err := pool.ExecContext(t.Context(), `INSERT INTO effects (uuid, consumer) VALUES ('own', 'own')`)
		require.NoError(t, err)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM effects WHERE uuid = 'own'`), "the service's own write was never committed")
		must(t, b.inbox(effect, on(store), redelivered), again(msg))
		assert.Equal(t, 1, b.effectsOf(msg.UUID), "the redelivery was taken for a duplicate")
		next := newMessage("next")
		must(t, b.inbox(effect, on(store)), next)
		assert.Equal(t, 1, b.effectsOf(next.UUID))
	})},
	{Name: "a failed COMMIT of outbox.InTx", Why: "its connection comes back without the transaction, or not at all", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		pool.SetMaxOpenConns(1)
		_, err := box.NewPublisher(pool.DB, box.Config{})
		require.NoError(t, err)
		insert := func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (uuid, consumer) VALUES ('in', 'tx')`)
			return err
		}
		pool.Set(stays())
		require.ErrorIs(t, box.InTx(t.Context(), pool.DB, insert), errStays)
		pool.Set(faults.Plan{})
		_, err = pool.ExecContext(t.Context(), `INSERT INTO effects (uuid, consumer) VALUES ('own', 'own')`)
		require.NoError(t, err)
		assert.Equal(t, 1, b.effects(), "only the service's own write is committed")
		require.NoError(t, box.InTx(t.Context(), pool.DB, insert))
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "a failed COMMIT of Migrate", Why: "its connection comes back without the transaction, or not at all", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool := faults.Open(t, db)
		pool.SetMaxOpenConns(1)
		store := b.newStore(pool.DB, inbox.Config{})
		pool.Set(stays())
		if err := store.Migrate(t.Context()); db.Dialect == "mysql" { // whose DDL commits by itself
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errStays)
		}
		pool.Set(faults.Plan{})
		_, err := pool.ExecContext(t.Context(), `INSERT INTO effects (uuid, consumer) VALUES ('own', 'own')`)
		require.NoError(t, err)
		assert.Equal(t, 1, b.effects(), "the service's own write was never committed")
		require.NoError(t, store.Migrate(t.Context()))
	}},
}

// TestMigrateWhoseCommitIsRefused: SQLite refuses a COMMIT where a deferred foreign key is broken, and keeps the transaction open.
func TestMigrateWhoseCommitIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite", testdb.Empty())
	pool := db.Open(t)
	pool.SetMaxOpenConns(1)
	for _, statement := range []string{
		`PRAGMA foreign_keys = 1`,
		`CREATE TABLE work (id INTEGER PRIMARY KEY)`,
		`CREATE TABLE children (parent INTEGER REFERENCES work (id) DEFERRABLE INITIALLY DEFERRED)`,
		`CREATE TABLE millrace_schema (version INTEGER NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL)`,
		`CREATE TRIGGER orphans AFTER INSERT ON millrace_schema BEGIN INSERT INTO children (parent) VALUES (7); END`,
	} {
		_, err := pool.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	store := rig.NewStore(t, pool.DB, inbox.Config{})
	require.ErrorContains(t, store.Migrate(t.Context()), "FOREIGN KEY")
	_, err := pool.ExecContext(t.Context(), `INSERT INTO work (id) VALUES (1)`)
	require.NoError(t, err)
	var n int
	require.NoError(t, db.GetContext(t.Context(), &n, `SELECT COUNT(*) FROM work`))
	assert.Equal(t, 1, n, "the service's own write was never committed")
	_, err = pool.ExecContext(t.Context(), `DROP TRIGGER orphans`)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
}

var errStays = errors.New("the commit failed")

// stays has the next COMMIT fail.
func stays() faults.Plan {
	return faults.Plan{Stays: func(context.Context) error { return errStays }}
}

// TestCheckRefusesADriverThatKeepsFailedCommits: a COMMIT that fails must end the transaction.
func TestCheckRefusesADriverThatKeepsFailedCommits(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite")
	migrate(t, db, inbox.Config{})
	pool := faults.Open(t, db)
	store := rig.NewStore(t, pool.DB, inbox.Config{})
	found := findings(t, store)
	assert.Empty(t, found)

	pool.Set(stays())
	found = findings(t, store)
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
		found := findings(t, store)
		msg := newMessage(name)
		_, err := b.inbox(effect, on(store))(msg)
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

package tests_test

import (
	"context"
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
	store, err := inbox.NewStore(pool.DB, inbox.Config{})
	require.NoError(t, err)
	require.ErrorContains(t, store.Migrate(t.Context()), "FOREIGN KEY")
	_, err = pool.ExecContext(t.Context(), `INSERT INTO work (id) VALUES (1)`)
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

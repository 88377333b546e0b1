package tests_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// lostBodies: a statement after which the transaction is gone, and what a handler does that
// goes on without it.
var lostBodies = []testdb.Body{
	{Name: "a statement that a router's close interrupts", Why: "nothing that is written after the loss of the claim stays", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		closing := true
		begun := make(chan *message.Router, 1)
		h := func(msg *message.Message) ([]*message.Message, error) {
			err := write(msg.Context(), "A")
			if closing {
				closing = false
				endless(msg.Context(), b.db, func() { go func() { _ = (<-begun).Close() }() }) // optional
			}
			return nil, errors.Join(err, write(context.WithoutCancel(msg.Context()), "B"))
		}
		msg := newMessage("x")
		for _, first := range []bool{true, false} {
			s := b.oneHandler("orders", h, millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware)
			begun <- s.router
			acked := s.deliver(again(msg))
			for !first && !acked { // where a pooler swallows the cancel request, the server goes on with the statement
				acked = s.deliver(again(msg))
			}
			assert.Equal(t, !first, acked)
			if first {
				require.NoError(t, <-s.stopped)
				b.store = b.process()
			}
		}
		assert.Equal(t, "A B", b.written())
	})},
	{Name: "an interrupted statement, then an error", Why: "a handler that fails leaves no row", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			err := write(msg.Context(), "A")
			interrupted(msg.Context(), b.db)
			_ = write(msg.Context(), "B")
			return nil, errors.Join(errBoom, err)
		})
		err := rig.Failure(t, h, newMessage("x"), errBoom)
		assert.Empty(t, b.written())
		if b.db.Dialect == "sqlite" {
			require.ErrorIs(t, err, inbox.ErrTxEndedByHandler)
			assert.Equal(t, 1, b.events.Count("ended tx"))
		}
	})},
	{Name: "ways to lose SQLite's transaction", Why: "nothing that is written after the loss of the claim stays", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect != "sqlite" {
			return // the others keep the transaction, or refuse its commit
		}
		b := newBed(t, db)
		b.exec(`CREATE TABLE box (topic VARCHAR(100), uuid VARCHAR(100))`)
		b.exec(`CREATE TABLE once (id INTEGER PRIMARY KEY)`)
		b.exec(`INSERT INTO once (id) VALUES (1)`)
		b.exec(`CREATE TABLE guarded (id INTEGER)`)
		b.exec(`CREATE TRIGGER guards BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END`)
		for how, lose := range losses {
			for what, goOn := range continuations {
				b.losesNothing(how+", then "+what, lose, goOn)
			}
		}
	}},
	{Name: "the connection of a lost transaction", Why: "what the service writes on it afterwards is committed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := b.db.Open(t, testdb.Pool(1))
		store := b.newStore(pool.DB, inbox.Config{})
		_, _ = b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			err := write(msg.Context(), "A")
			interrupted(msg.Context(), b.db)
			return nil, err
		}, on(store))(newMessage("x"))
		_, _ = b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(write(msg.Context(), "A"), raw(msg, "COMMIT"), errBoom)
		}, on(store))(newMessage("x"))
		b.exec(`DELETE FROM effects`)
		_, err := pool.ExecContext(t.Context(), `INSERT INTO effects (uuid, consumer) VALUES ('x', 'own')`)
		require.NoError(t, err)
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			return nil, write(msg.Context(), "A")
		}, on(store)), newMessage("y"))
		_, err = pool.ExecContext(t.Context(), `INSERT INTO effects (uuid, consumer) VALUES ('x', 'own')`)
		require.NoError(t, err)
		assert.Equal(t, "A own own", b.written())
	})},
	{Name: "connections after every end of a transaction", Why: "none is kept", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := b.db.Open(t, testdb.Pool(2))
		for name, h := range ends(b.db) {
			store := b.newStore(pool.DB, inbox.Config{})
			func() {
				defer func() { _ = recover() }()
				_, _ = b.inbox(h, on(store), func(i *millrace.Inbox) { i.Timeout = time.Second })(newMessage(name))
			}()
			assert.Eventually(t, func() bool { return pool.Stats().InUse == 0 }, rig.Patience, time.Millisecond, name)
		}
	})},
}

// losses are statements by which SQLite rolls back the whole transaction.
var losses = map[string]func(ctx context.Context, tx *sqlx.Tx) error{
	"an interrupt": func(ctx context.Context, tx *sqlx.Tx) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return forever(ctx, tx, "sqlite", cancel)
	},
	"INSERT OR ROLLBACK": losing(`INSERT OR ROLLBACK INTO once (id) VALUES (1)`),
	"RAISE(ROLLBACK)":    losing(`INSERT INTO guarded (id) VALUES (1)`),
	"a full disk": func(ctx context.Context, tx *sqlx.Tx) error {
		var pages int
		if err := tx.GetContext(ctx, &pages, `PRAGMA page_count`); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+2)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (uuid, consumer) VALUES (hex(zeroblob(1000000)), 'large')`)
		_, again := tx.ExecContext(ctx, `PRAGMA max_page_count = 1000000000`)
		if again != nil {
			return nil
		}
		return err
	},
	"a raw ROLLBACK": func(ctx context.Context, tx *sqlx.Tx) error { return errors.Join(losing(`ROLLBACK`)(ctx, tx), errBoom) },
	"a raw COMMIT":   losing(`COMMIT`),
}

func losing(statement string) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}

// continuations are what a handler does after that, whatever it is told.
var continuations = map[string]func(b *bed, msg *message.Message, tx *sqlx.Tx) error{
	"nothing": runs(),
	"a write": func(_ *bed, msg *message.Message, _ *sqlx.Tx) error {
		_ = write(msg.Context(), "B")
		return nil
	},
	"a write and an error": func(_ *bed, msg *message.Message, _ *sqlx.Tx) error {
		return errors.Join(errBoom, write(msg.Context(), "B"))
	},
	"a transaction of its own": runs(`BEGIN`, writesB, `COMMIT`),
	"a transaction left open":  runs(`BEGIN`, writesB),
	"a savepoint":              runs(`SAVEPOINT s`, writesB, `RELEASE s`),
	"DDL":                      runs(`CREATE TABLE stray (id INTEGER)`),
	"the outbox": func(b *bed, msg *message.Message, _ *sqlx.Tx) error {
		publisher := rig.NewOutbox(b, b.db.DB, box.Config{})
		out := newMessage("event")
		out.SetContext(msg.Context())
		_ = publisher.Publish("events", out)
		return nil
	},
	"Commit": func(_ *bed, _ *message.Message, tx *sqlx.Tx) error {
		_ = tx.Commit()
		return nil
	},
}

const writesB = `INSERT INTO effects (uuid, consumer) VALUES ('x', 'B')`

func runs(statements ...string) func(*bed, *message.Message, *sqlx.Tx) error {
	return func(_ *bed, msg *message.Message, _ *sqlx.Tx) error {
		for _, s := range statements {
			_ = raw(msg, s)
		}
		return nil
	}
}

// losesNothing runs a handler whose transaction is lost, and then one whose is not.
func (b *bed) losesNothing(name string, lose func(context.Context, *sqlx.Tx) error, goOn func(*bed, *message.Message, *sqlx.Tx) error) {
	b.Helper()
	lost := true
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		err := write(msg.Context(), "A")
		if !lost {
			return nil, errors.Join(err, write(msg.Context(), "B"))
		}
		tx, txErr := inbox.Tx(msg.Context())
		require.NoError(b, errors.Join(err, txErr), name)
		require.Error(b, lose(msg.Context(), tx), name)
		return nil, goOn(b, msg, tx)
	})
	ended, msg := b.events.Count("ended tx"), newMessage("x")
	_, err := h(again(msg))
	require.ErrorIs(b, err, inbox.ErrTxEndedByHandler, name)
	assert.Equal(b, ended+1, b.events.Count("ended tx"), name)
	assert.Empty(b, b.written(), name)
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM millrace_outbox`), name)
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM sqlite_master WHERE name = 'stray'`), name)
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM millrace_claims`), name)
	lost = false
	must(b.T, h, again(msg))
	must(b.T, h, again(msg))
	assert.Equal(b, "A B", b.written(), name)
	b.exec(`DELETE FROM effects`)
	b.exec(`DELETE FROM millrace_claims`)
}

// write is one effect of a handler.
func write(ctx context.Context, what string) error {
	return rig.Exec(ctx, `INSERT INTO effects (uuid, consumer) VALUES ('x', ?)`, what)
}

// written returns the effects that were committed.
func (b *bed) written() string {
	b.Helper()
	var all []string
	require.NoError(b, b.db.SelectContext(b.Context(), &all, `SELECT consumer FROM effects ORDER BY consumer`))
	return strings.Join(all, " ")
}

// running has what SQLite calls when a statement of forever runs.
var running sync.Map

// forever writes until it is interrupted, and calls begun once it runs.
func forever(ctx context.Context, tx *sqlx.Tx, dialect string, begun func()) (err error) {
	if dialect == "sqlite" {
		run := watermill.NewUUID()
		running.Store(run, begun)
		_, err = tx.ExecContext(ctx, `INSERT INTO effects (uuid, consumer) WITH RECURSIVE n(i) AS (
			SELECT running(?) UNION ALL SELECT i+1 FROM n WHERE i < 200000000) SELECT 'x', 'endless' FROM (SELECT MAX(i) FROM n)`, run)
		return err
	}
	time.AfterFunc(500*time.Millisecond, begun)
	_, err = tx.ExecContext(ctx, map[string]string{
		"postgres": `INSERT INTO effects (uuid, consumer) SELECT 'x', 'endless' FROM pg_sleep(12)`,
		"mysql":    `INSERT INTO effects (uuid, consumer) SELECT 'x', 'endless' FROM (SELECT SLEEP(600)) s`,
	}[dialect])
	return err
}

func registerRunning() {
	sqlite.MustRegisterScalarFunction("running", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		if begun, ok := running.LoadAndDelete(args[0]); ok {
			begun.(func())()
		}
		return int64(1), nil
	})
}

// endless is forever in the handler's transaction, and forgets the error.
func endless(ctx context.Context, db *testdb.DB, begun func()) {
	if tx, err := inbox.Tx(ctx); err == nil {
		_ = forever(ctx, tx, db.Dialect, begun)
	}
}

// interrupted is endless with a context that ends once it runs.
func interrupted(ctx context.Context, db *testdb.DB) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	endless(ctx, db, cancel)
}

// ends are handlers whose transaction ends in as many ways.
func ends(db *testdb.DB) map[string]message.HandlerFunc {
	return map[string]message.HandlerFunc{
		"success": effect,
		"error":   alwaysFails,
		"panic":   func(*message.Message) ([]*message.Message, error) { panic(errBoom) },
		"late": func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return nil, nil
		},
		"late in a statement": func(msg *message.Message) ([]*message.Message, error) {
			endless(msg.Context(), db, func() {})
			return nil, nil
		},
		"its own Commit": func(msg *message.Message) ([]*message.Message, error) {
			return nil, end(msg, (*sqlx.Tx).Commit)
		},
		"its own Rollback": func(msg *message.Message) ([]*message.Message, error) {
			return nil, end(msg, (*sqlx.Tx).Rollback)
		},
		"an interrupt": func(msg *message.Message) ([]*message.Message, error) {
			interrupted(msg.Context(), db)
			return effect(msg)
		},
		"rows left open": func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			rows, err := tx.QueryContext(msg.Context(), `SELECT uuid FROM effects`) //nolint:rowserrcheck,sqlclosecheck // left open
			if err == nil {
				rows.Next()
			}
			return nil, err
		},
	}
}

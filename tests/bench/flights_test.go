package bench_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/stored"
	millrace "github.com/millrace-go/millrace/middleware"
	_ "github.com/millrace-go/millrace/mysqldb" // registers "mysqldb"
	"github.com/millrace-go/millrace/outbox"
	_ "github.com/millrace-go/millrace/pgxdb" // registers "pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkFlights is P1 and P2 through pgxdb, without and with a message that the handler publishes.
func BenchmarkFlights(b *testing.B) {
	nearAndFar(b, func(b *testing.B, db *testdb.DB, at place) { flights(b, db, at, "pgxdb", update) })
}

// BenchmarkFlightsMySQL is P2 through mysqldb on MariaDB, with the driver's fastest settings on every side.
func BenchmarkFlightsMySQL(b *testing.B) {
	settings := testdb.Params("interpolateParams", "true", "multiStatements", "true", "tx_isolation", "'READ-COMMITTED'")
	for _, at := range []place{near, far} {
		b.Run(string(at), func(b *testing.B) {
			db := testdb.On(b, "mysql", testdb.Pool(pool), settings)
			run(b, db,
				`CREATE TABLE bench_account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)`,
				`INSERT INTO bench_account SELECT seq, 0 FROM seq_1_to_`+strconv.Itoa(accounts))
			if at == far {
				config, err := mysql.ParseDSN(db.DSN)
				require.NoError(b, err)
				wire := servers.Proxy(b, config.Addr)
				wire.Slow(distance)
				db = db.Open(b, testdb.Via(wire.Addr()), testdb.Pool(pool), settings)
			}
			flights(b, db, at, "mysqldb", `UPDATE bench_account SET balance = balance + 1 WHERE id = ?`)
		})
	}
}

// flights measures a driver that saves flights beside the usual one, and both beside what one writes by hand.
func flights(b *testing.B, db *testdb.DB, at place, driver, update string) {
	b.Helper()
	saving, err := sqlx.Open(driver, db.DSN)
	require.NoError(b, err)
	saving.SetMaxOpenConns(pool)
	saving.SetMaxIdleConns(pool)
	b.Cleanup(func() { require.NoError(b, saving.Close()) })
	d := dialect.For(db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix})
	byHand := func(store string) *service {
		return serve(b, func(msg *message.Message) error {
			return byStatements(msg, db.DB.DB, d.Claim, update, store)
		}, func(*message.Router) {})
	}
	publishes := func(pool *sqlx.DB) message.NoPublishHandlerFunc {
		out := rig.NewOutbox(b, pool, outbox.Config{})
		return func(msg *message.Message) error {
			if err := transfer(msg); err != nil {
				return err
			}
			return out.Publish("transferred", newMessage(msg.Context(), watermill.NewUUID()))
		}
	}
	type way struct {
		name string
		*service
	}
	ways := []way{
		{"inbox", inboxOn(b, db.DB, transfer)},
		{"saving", inboxOn(b, saving, transfer)},
		{"by hand", byHand("")},
		{"inbox publishes", inboxOn(b, db.DB, publishes(db.DB))},
		{"saving publishes", inboxOn(b, saving, publishes(saving))},
		{"five by hand", byHand(d.Outbox.Insert)},
		{"least", serve(b, newLeastInbox(saving, d.Claim, transfer).handle, func(*message.Router) {})},
		{"bare", serve(b, leastFlights(b, db, d, update, ""), func(*message.Router) {})},
		{"bare publishes", serve(b, leastFlights(b, db, d, update, d.Outbox.Insert), func(*message.Router) {})},
	}
	postgres := db.Dialect == dialect.PostgresName
	if postgres {
		ways = append(ways, way{"held", serve(b, leastHeld(b, newConns(b, db), d, update), func(*message.Router) {})})
	}
	rates := series{}
	for range at.turns() {
		for _, way := range ways {
			empty(b, db)
			rates.add(way.name, way.flood(b, phase()))
		}
		if postgres {
			empty(b, db)
			rates.add("pgbench", pgbench(b, db, "prepared", phase()))
		}
	}
	judge := func(goal string, bound float64, one, other string) {
		atLeast(at.goal(goal+"/"+driver), bound).judge(b, rates.over(one, other), "%s %.0f/s, %s %.0f/s",
			one, median(rates[one]), other, median(rates[other]))
	}
	if postgres {
		judge("P1", 1, "saving", "pgbench")
		judge("P1/least", 1, "least", "pgbench")
		judge("P1/bare", 1, "bare", "pgbench")
		judge("G1/held/bare", 0.5, "held", "bare")
	}
	judge("P2/least", pickAt(at, 1.25, 1.3), "least", "by hand")
	judge("P2/bare", pickAt(at, 1.25, 1.3), "bare", "by hand")
	judge("P2", pickAt(at, 1.25, 1.3), "saving", "by hand")
	judge("P2/without", 1, "saving", "inbox")
	judge("P2/outbox", pickAt(at, 1.4, 1.6), "saving publishes", "five by hand")
	judge("P2/outbox/bare", pickAt(at, 1.4, 1.6), "bare publishes", "five by hand")
	judge("P2/outbox/without", 1, "saving publishes", "inbox publishes")
}

// leastFlights returns a handler that does what three flights must do, with the driver's own means, and nothing else: no
// database/sql on PostgreSQL, no copy of the message, no timeout. The statement that stores a message for a relay, unless it
// is empty, and MySQL's look whether the claim is held travel with COMMIT. Nothing in a router is faster.
func leastFlights(b *testing.B, db *testdb.DB, d *dialect.Dialect, update, store string) message.NoPublishHandlerFunc {
	b.Helper()
	if db.Dialect == dialect.MySQLName {
		return func(msg *message.Message) error { return threeFlights(msg, db.DB.DB, d, update, store) }
	}
	conns := newConns(b, db)
	return func(msg *message.Message) error {
		ctx := msg.Context()
		conn, err := conns.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		key, err := storedKey(msg.UUID)
		if err != nil {
			return err
		}
		begin := &pgx.Batch{}
		begin.Queue("BEGIN")
		begin.Queue(d.Claim, 7, key, 0, 1)
		if err := conn.SendBatch(ctx, begin).Close(); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, update, rand.IntN(accounts)+1); err != nil {
			return err
		}
		if store == "" {
			_, err = conn.Exec(ctx, "COMMIT")
			return err
		}
		end := &pgx.Batch{}
		end.Queue(store, storedMessage()...)
		end.Queue("COMMIT")
		return conn.SendBatch(ctx, end).Close()
	}
}

// leastHeld returns a handler that does what must be done for a message that is stored until its predecessor is applied, and
// then handled by itself: a transaction of one flight and one of three. How the gap was found, the turn of the aggregate,
// and the statement by which a queue takes a page of released messages are left out.
func leastHeld(b *testing.B, conns *pgxpool.Pool, d *dialect.Dialect, update string) message.NoPublishHandlerFunc {
	b.Helper()
	both := func(msg *message.Message) error {
		ctx := msg.Context()
		conn, err := conns.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		key, err := storedKey(msg.UUID)
		if err != nil {
			return err
		}
		reopen, args, err := d.In(d.ReopenClaim, 7, [][]byte{key}, 0)
		if err != nil {
			return err
		}
		store := &pgx.Batch{}
		store.Queue("BEGIN")
		store.Queue(d.Claim, 7, key, 0, 0)
		store.Queue(reopen, args...)
		store.Queue(d.InsertMessage, 7, key, stored.Held, 0, []byte(topic), nil, nil, nil, nil, nil, []byte(msg.UUID), []byte{}, msg.Payload,
			0, nil, nil, 0, "waits", 0, nil, key, 2, 0, nil, dialect.NeverDue)
		store.Queue("COMMIT")
		if err := conn.SendBatch(ctx, store).Close(); err != nil {
			return err
		}
		begin := &pgx.Batch{}
		begin.Queue("BEGIN")
		begin.Queue(d.CloseClaim, 1, 7, key)
		if err := conn.SendBatch(ctx, begin).Close(); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, update, rand.IntN(accounts)+1); err != nil {
			return err
		}
		end := &pgx.Batch{}
		end.Queue(d.DeleteMessage, 7, key, stored.Held)
		end.Queue("COMMIT")
		return conn.SendBatch(ctx, end).Close()
	}
	return func(msg *message.Message) error { // what it has stored, a second try could not store again
		if err := both(msg); err != nil {
			b.Error(err)
		}
		return nil
	}
}

func newConns(b *testing.B, db *testdb.DB) *pgxpool.Pool {
	b.Helper()
	config, err := pgxpool.ParseConfig(db.DSN)
	require.NoError(b, err)
	config.MaxConns = pool
	conns, err := pgxpool.NewWithConfig(context.WithoutCancel(b.Context()), config)
	require.NoError(b, err)
	b.Cleanup(conns.Close)
	return conns
}

func threeFlights(msg *message.Message, db *sql.DB, d *dialect.Dialect, update, store string) error {
	ctx := msg.Context()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	key, err := storedKey(msg.UUID)
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN;"+d.Claim, 7, key, 0, 1); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, update, rand.IntN(accounts)+1); err != nil {
		return err
	}
	end, args := d.FailUnlessHeld+";COMMIT", []any{7, key, 1}
	if store != "" {
		end, args = store+";"+end, append(storedMessage(), args...)
	}
	_, err = conn.ExecContext(ctx, end, args...)
	return err
}

func pickAt(at place, nearby, away float64) float64 {
	if at == far {
		return away
	}
	return nearby
}

// empty brings the tables to the same state before each phase.
func empty(b *testing.B, db *testdb.DB) {
	b.Helper()
	run(b, db, `TRUNCATE TABLE millrace_claims`, `TRUNCATE TABLE millrace_messages`, `TRUNCATE TABLE millrace_outbox`)
	if db.Dialect == dialect.PostgresName {
		settleDown(b, db)
	}
}

// inboxOn is a service with an inbox of its own on a pool.
func inboxOn(b *testing.B, db *sqlx.DB, handler message.NoPublishHandlerFunc) *service {
	b.Helper()
	store := rig.NewStore(b, db, inbox.Config{WithoutPlugin: true})
	b.Cleanup(func() { _ = store.Close(context.WithoutCancel(b.Context())) })
	return serve(b, handler, func(router *message.Router) {
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		router.AddPlugin(store.Plugin())
	})
}

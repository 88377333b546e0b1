package bench_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	_ "github.com/millrace-go/millrace/pgxdb" // registers "pgxdb"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkFlights is P1 and P2 through pgxdb, without and with a message that the handler publishes.
func BenchmarkFlights(b *testing.B) {
	db := database(b)
	run(b, db, `ALTER TABLE millrace_outbox SET (autovacuum_enabled = off)`)
	saving := savingFlights(b, db)
	publishes := func(pool *sqlx.DB) message.NoPublishHandlerFunc {
		out := rig.NewOutbox(b, pool, outbox.Config{})
		return func(msg *message.Message) error {
			if err := transfer(msg); err != nil {
				return err
			}
			return out.Publish("transferred", newMessage(msg.Context(), watermill.NewUUID()))
		}
	}
	ways := map[string]*service{
		"inbox":                    withInbox(b, db),
		"inbox, pgxdb":             inboxOn(b, saving, transfer),
		"by hand":                  withoutInbox(b, db.DB.DB),
		"inbox publishes":          inboxOn(b, db.DB, publishes(db.DB)),
		"inbox publishes, pgxdb":   inboxOn(b, saving, publishes(saving)),
		"by hand, five statements": serve(b, func(msg *message.Message) error { return fiveByHand(msg, db.DB.DB) }, func(*message.Router) {}),
	}
	rates := series{}
	for range pick(7, 1) {
		run(b, db, `TRUNCATE millrace_claims, millrace_outbox`)
		settleDown(b, db)
		rates.add("pgbench", pgbench(b, db, "prepared", phase()))
		for name, way := range ways {
			run(b, db, `TRUNCATE millrace_claims, millrace_outbox`)
			settleDown(b, db)
			rates.add(name, way.flood(b, phase()))
		}
	}
	tellRatio := func(goal string, bound float64, one, other string) {
		atLeast(goal, bound).judge(b, rates.over(one, other), "%s %.0f/s, %s %.0f/s", one, median(rates[one]), other, median(rates[other]))
	}
	tellRatio("P1/pgxdb", 1, "inbox, pgxdb", "pgbench")
	tellRatio("P2/pgxdb", 1.25, "inbox, pgxdb", "by hand")
	tellRatio("P2/pgxdb/without", 1, "inbox, pgxdb", "inbox")
	tellRatio("P2/outbox", 1, "inbox publishes", "by hand, five statements")
	tellRatio("P2/outbox/pgxdb", 1.4, "inbox publishes, pgxdb", "by hand, five statements")
}

// savingFlights is a second pool on db, through pgxdb.
func savingFlights(b *testing.B, db *testdb.DB) *sqlx.DB {
	b.Helper()
	saving, err := sqlx.Open("pgxdb", db.DSN)
	require.NoError(b, err)
	saving.SetMaxOpenConns(pool)
	saving.SetMaxIdleConns(pool)
	b.Cleanup(func() { require.NoError(b, saving.Close()) })
	return saving
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

var store = dialect.For(dialect.PostgresName, dialect.Names{Prefix: dialect.DefaultPrefix}).Outbox.Insert

// fiveByHand is byHand with a message for a relay.
func fiveByHand(msg *message.Message, db *sql.DB) error {
	return byHandAnd(msg, db, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, store, rand.Int64(), "transferred", nil, watermill.NewUUID(), nil, []byte("{}"), body, nil)
		return err
	})
}

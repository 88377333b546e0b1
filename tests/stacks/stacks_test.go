// Package stacks_test has handlers that write with the libraries that services use, each in the transaction of the
// inbox, and kills their process in the middle. docs/your-stack.md shows them.
package stacks_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// order is what the messages say, and a row of the table that handlers write.
type order struct {
	ID     string
	Amount int64
}

func read(msg *message.Message) (o order, err error) { return o, json.Unmarshal(msg.Payload, &o) }

// stacks makes a handler of each library, which inserts the order and adds its amount to the account.
var stacks = map[string]func(db *sqlx.DB) (message.NoPublishHandlerFunc, error){
	"database/sql": func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withDatabaseSQL, nil },
	"sqlx":         func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withSqlx, nil },
	"pgx":          func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withPgx, nil },
	"sqlc":         func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withSqlc, nil },
	"squirrel":     func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withSquirrel, nil },
	"bun":          func(db *sqlx.DB) (message.NoPublishHandlerFunc, error) { return withBun(db), nil },
	"ent":          func(*sqlx.DB) (message.NoPublishHandlerFunc, error) { return withEnt, nil },
	"GORM":         withGORM,
}

// TestStacks delivers each message twice, and kills the process before and after each commit.
func TestStacks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	for name, stack := range stacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres", testdb.Params("synchronous_commit", "off"), testdb.Empty())
			scenario := scenarioOf(stack)
			scenario.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
			inboxtest.Duplicate(t, scenario)
			inboxtest.CrashBeforeCommit(t, scenario)
			inboxtest.CrashAfterCommit(t, scenario)
		})
	}
}

type ledger struct {
	Orders  int
	Balance int64
}

func scenarioOf(stack func(db *sqlx.DB) (message.NoPublishHandlerFunc, error)) inboxtest.Scenario {
	return inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{}) //nolint:contextcheck // it takes none
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `
				CREATE TABLE orders (id TEXT PRIMARY KEY, amount BIGINT NOT NULL);
				CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL);
				INSERT INTO accounts (id, balance) VALUES ('shop', 0)`)
			return err
		},
		Service: func(p *inboxtest.Process) error {
			store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
			if err != nil {
				return err
			}
			p.OnClose(store.Close)
			millrace.Inbox{Store: store, Timeout: time.Second}.AddTo(p.Router)
			handler, err := stack(p.DB)
			if err != nil {
				return err
			}
			p.Router.AddConsumerHandler("shop", "orders", p.Subscriber, handler)
			return nil
		},
		Inputs: inboxtest.To("orders",
			message.NewMessage("m1", []byte(`{"ID":"o1","Amount":10}`)), message.NewMessage("m2", []byte(`{"ID":"o2","Amount":5}`))),
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var l ledger
			err := db.GetContext(ctx, &l, `SELECT (SELECT COUNT(*) FROM orders) AS orders, (SELECT balance FROM accounts) AS balance`)
			return l, err
		},
		Want: ledger{Orders: 2, Balance: 15},
		Slow: 2 * time.Second,
	}
}

// Package stacks_test has handlers that write with the libraries that services use, each in the transaction of the
// inbox, and kills their process in the middle. docs/your-stack.md shows them.
package stacks_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"

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

// placedOrder is a message as an EventBus of Watermill sends it.
func placedOrder(uuid string, o order) *message.Message {
	payload, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage(uuid, payload)
	msg.Metadata.Set("name", "order")
	return msg
}

func read(msg *message.Message) (o order, err error) { return o, json.Unmarshal(msg.Payload, &o) }

// stacks add a handler of each library to the router, which inserts the order and adds its amount to the account.
var stacks = map[string]func(p *inboxtest.Process) error{
	"database/sql": handler(withDatabaseSQL),
	"sqlx":         handler(withSqlx),
	"pgx":          handler(withPgx),
	"sqlc":         handler(withSqlc),
	"squirrel":     handler(withSquirrel),
	"ent":          handler(withEnt),
	"bun":          func(p *inboxtest.Process) error { return handler(withBun(p.DB))(p) },
	"CQRS":         func(p *inboxtest.Process) error { return addGroup(p.Router, p.Subscriber) },
	"GORM": func(p *inboxtest.Process) error {
		h, err := withGORM(p.DB)
		if err != nil {
			return err
		}
		return handler(h)(p)
	},
}

func handler(h message.NoPublishHandlerFunc) func(p *inboxtest.Process) error {
	return func(p *inboxtest.Process) error {
		p.Router.AddConsumerHandler("shop", "orders", p.Subscriber, h)
		return nil
	}
}

// TestStacks delivers each message twice, and kills the process before and after each commit.
func TestStacks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	for _, name := range testdb.Sample(t, 4, slices.Sorted(maps.Keys(stacks))) {
		stack := stacks[name]
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

func scenarioOf(stack func(p *inboxtest.Process) error) inboxtest.Scenario {
	return inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
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
			millrace.Inbox{Store: store}.AddTo(p.Router)
			return stack(p)
		},
		Inputs: inboxtest.To("orders", placedOrder("m1", order{"o1", 10}), placedOrder("m2", order{"o2", 5})),
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var l ledger
			err := db.GetContext(ctx, &l, `SELECT (SELECT COUNT(*) FROM orders) AS orders, (SELECT balance FROM accounts) AS balance`)
			return l, err
		},
		Want: ledger{Orders: 2, Balance: 15},
	}
}

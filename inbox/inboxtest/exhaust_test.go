package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/testdb"
)

// accounts is a service that books payments: the state of one account, and a receipt each.
func accounts(wire func(p *inboxtest.Process, store *inbox.Store) error) inboxtest.Scenario {
	return inboxtest.Scenario{
		Prepare: func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{})
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`)
			if err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `INSERT INTO accounts (id, balance) VALUES (1, 0)`)
			return err
		},
		Service: func(p *inboxtest.Process) error {
			store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger})
			if err != nil {
				return err
			}
			p.OnClose(store.Close)
			p.Router.AddPlugin(store.Plugin())
			return wire(p, store)
		},
		Inputs: inboxtest.To("payments",
			message.NewMessage("one", []byte("10")),
			message.NewMessage("two", []byte("5")),
		),
		Ledger: func(ctx context.Context, db *sqlx.DB) (any, error) {
			var balance int
			return balance, db.GetContext(ctx, &balance, `SELECT balance FROM accounts WHERE id = 1`)
		},
		Want: 15,
	}
}

func book(msg *message.Message) ([]*message.Message, error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(msg.Context(), `UPDATE accounts SET balance = balance + `+string(msg.Payload)+` WHERE id = 1`)
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage(fmt.Sprint("receipt of ", msg.UUID), msg.Payload)}, nil
}

func TestARightHandlerPasses(t *testing.T) {
	if !testdb.Long() {
		t.Skip("it takes a while: MILLRACE_TEST_LONG=1 has it play every fault; TestARightHandlerPassesEachCheck plays some")
	}
	inboxtest.Exhaust(t, accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: 300 * time.Millisecond}.Middleware)
		p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
		return nil
	}))
}

func TestRandomFaultsDoNotHarmARightHandler(t *testing.T) {
	plays := 20
	if testdb.Long() {
		plays = 200
	}
	inboxtest.Random(t, accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: 300 * time.Millisecond}.Middleware)
		p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
		return nil
	}), plays, 1)
}

// What Millrace does in a transaction is not the user's, whatever middleware is around it, and what
// OnBegin does there is right.
func TestAMiddlewareOfTheService(t *testing.T) {
	s := withReplay(func(p *inboxtest.Process, store *inbox.Store) error {
		own := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { return next(msg) }
		}
		tenant := func(ctx context.Context, tx *sqlx.Tx, _ *message.Message) error {
			_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance`)
			return err
		}
		p.Router.AddMiddleware(own, millrace.Inbox{
			Store: store, Timeout: 300 * time.Millisecond, Options: inbox.Options{OnReplay: inbox.ReplayRefuse, OnBegin: tenant},
		}.Middleware)
		p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
		return nil
	}, inbox.Config{BlobsAbove: 1})
	inboxtest.CrashAfterCommit(t, s)
}

// What is stored in the service's namespace is waited for.
func TestANamespace(t *testing.T) {
	s := withReplay(func(p *inboxtest.Process, store *inbox.Store) error {
		sub, err := pubsub.Durable{Store: store, Consumer: "book", Mode: pubsub.StoreFirst, Lease: time.Second}.Decorate(p.Subscriber)
		if err != nil {
			return err
		}
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: 300 * time.Millisecond, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware)
		p.Router.AddHandler("book", "payments", sub, "receipts", p.Publisher, book)
		return nil
	}, inbox.Config{Namespace: "bank"})
	s.Namespace = "bank"
	inboxtest.CrashAfterCommit(t, s)
}

// withReplay is the service of accounts on a store of its own, given a replayed message too.
func withReplay(wire func(p *inboxtest.Process, store *inbox.Store) error, config inbox.Config) inboxtest.Scenario {
	s := accounts(nil)
	s.Service = func(p *inboxtest.Process) error {
		store, err := inbox.NewStore(p.DB, config)
		if err != nil {
			return err
		}
		p.OnClose(store.Close)
		p.Router.AddPlugin(store.Plugin())
		return wire(p, store)
	}
	replayed := message.NewMessage("three", []byte("100"))
	replayed.Metadata.Set(inbox.ReplayField, "of yesterday")
	s.Inputs = append(s.Inputs, inboxtest.To("payments", replayed)...)
	return s
}

// A kit that does not see the tables says so: it would take a message that waits in them for handled.
func TestTablesThatPrepareDidNotMake(t *testing.T) {
	s := accounts(right)
	s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
		_, err := db.ExecContext(ctx, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)`)
		if err == nil {
			_, err = db.ExecContext(ctx, `INSERT INTO accounts (id, balance) VALUES (1, 0)`)
		}
		return err
	}
	service := s.Service
	s.Service = func(p *inboxtest.Process) error {
		store, err := inbox.NewStore(p.DB, inbox.Config{})
		if err == nil {
			err = store.Migrate(t.Context())
		}
		return errors.Join(err, service(p))
	}
	heard := &heard{TB: t}
	inboxtest.Duplicate(heard, s)
	assert.Equal(t, 1, strings.Count(heard.String(), "call Migrate in Prepare"), heard.String())
	assert.Contains(t, heard.String(), "exhaust_test.go:")
}

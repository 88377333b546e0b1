package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A finding about what stands around the handler names it, and the handler's last line. The transaction may be one that the version gate
// began, whose claim is part of a larger statement.
func TestTheMiddlewareToBlameIsNamed(t *testing.T) {
	for _, dialect := range []string{"sqlite", "postgres", "mysql"} {
		for _, gated := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/gated=%v", dialect, gated), func(t *testing.T) {
				t.Parallel()
				heard := &heard{TB: t}
				s := accounts(nil)
				if dialect != "sqlite" {
					db := testdb.On(t, dialect, testdb.Empty())
					s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
				}
				s.Service = func(p *inboxtest.Process) error {
					store, err := inbox.NewStore(p.DB, inbox.Config{Logger: p.Logger, WithoutPlugin: true})
					if err != nil {
						return err
					}
					p.OnClose(store.Close)
					p.Router.AddMiddleware(millrace.Inbox{Store: store}.Middleware) // a timeout would roll back what is to be committed
					if gated {
						p.Router.AddMiddleware(millrace.VersionGate{OnGap: inbox.GapFail, Version: inTurn}.Middleware)
					}
					p.Router.AddMiddleware(swallow)
					p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
					return nil
				}
				inboxtest.Replay(heard, s, "fail before m2 UPDATE accounts")
				assert.Regexp(t, `inboxtest: wrong_test\.go:\d+: the handler failed \(.*\), and its transaction is committed\n`+
					`    A middleware between Inbox and the handler, which is inboxtest_test\.swallow at blame_test\.go:\d+, hides`, heard.String())
			})
		}
	}
}

// A table that a handler may write to outside of its transaction is known with its schema and without, however the statement quotes it.
func TestATableOutside(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	for named, found := range map[string]bool{"bookings": false, "public.bookings": false, "booking": true} {
		heard := &heard{TB: t}
		s := ledger(accounts(handled(func(p *inboxtest.Process, msg *message.Message) error {
			if err := addInTx(msg); err != nil {
				return err
			}
			_, err := p.DB.ExecContext(msg.Context(), `INSERT INTO "public"."bookings" (uuid, amount) VALUES ('a note', 0)`)
			return err
		})))
		s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
		s.Outside = []string{named}
		inboxtest.Replay(heard, s, "crash before m1 COMMIT")
		assert.Equal(t, found, strings.Contains(heard.String(), "written outside"), named)
	}
}

// A statement that only looks like one of Millrace's is the handler's: the prefix of Millrace's tables begins other names too.
func TestAWriteOutsideBesideThePrefix(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	for found, wire := range map[string]func(*inboxtest.Process, *inbox.Store) error{
		"UPDATE accounts": beside(`UPDATE accounts SET balance = balance + 1`),
		"INSERT INTO accclaims_paid": handled(func(p *inboxtest.Process, msg *message.Message) error {
			tx, err := p.DB.BeginTxx(msg.Context(), nil)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO accclaims_paid (id) VALUES (1) ON CONFLICT DO NOTHING`)
			return errors.Join(err, tx.Commit())
		}),
	} {
		heard := &heard{TB: t}
		s := withReplay(wire, inbox.Config{TablePrefix: "acc"})
		s.TablePrefix, s.Want = "acc", nil
		s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
			store, err := inbox.NewStore(db, inbox.Config{TablePrefix: "acc"})
			if err != nil {
				return err
			}
			if err := store.Migrate(ctx); err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
				INSERT INTO accounts (id, balance) VALUES (1, 0);
				CREATE TABLE accclaims_paid (id INTEGER PRIMARY KEY)`)
			return err
		}
		s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
		inboxtest.Replay(heard, s, "crash before m1 COMMIT")
		assert.Contains(t, heard.String(), "written outside of the inbox's transaction: "+found)
	}
}

// inTurn makes both messages versions of one aggregate.
func inTurn(msg *message.Message) ([]inbox.Version, error) {
	return []inbox.Version{{Aggregate: "account", Number: map[string]int64{"one": 1, "two": 2}[msg.UUID]}}, nil
}

// swallow takes every failure for a success.
func swallow(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, _ := next(msg)
		return produced, nil
	}
}

// A table of Scenario.Outside is known however the statement spells and modifies it.
func TestATableOutsideInOtherWords(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	for statement, named := range map[string]string{
		`INSERT INTO Bookings (uuid, amount) VALUES ('a note', 0)`:              "bookings",
		`INSERT INTO /* beside */ bookings (uuid, amount) VALUES ('a note', 0)`: "bookings",
		`INSERT INTO public . bookings (uuid, amount) VALUES ('a note', 0)`:     "bookings",
		`INSERT INTO "my bookings" (uuid, amount) VALUES ('a note', 0)`:         "my bookings",
		`CREATE TABLE IF NOT EXISTS bookings (uuid TEXT)`:                       "bookings",
		`TRUNCATE bookings`: "bookings",
	} {
		heard := &heard{TB: t}
		s := ledger(accounts(handled(func(p *inboxtest.Process, msg *message.Message) error {
			_, err := p.DB.ExecContext(msg.Context(), statement)
			return errors.Join(err, addInTx(msg))
		})))
		prepare := s.Prepare
		s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
			if err := prepare(ctx, db); err != nil {
				return err
			}
			_, err := db.ExecContext(ctx, `CREATE TABLE "my bookings" (uuid TEXT, amount INTEGER)`)
			return err
		}
		s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
		s.Outside = []string{named}
		inboxtest.Replay(heard, s, "crash before m1 COMMIT")
		assert.Empty(t, heard.String(), statement)
	}
}

// A right handler may read through the pool, whatever its statement speaks of.
func TestAReadOutside(t *testing.T) {
	for _, query := range []string{
		`WITH last AS (SELECT uuid FROM bookings) SELECT COUNT(*) FROM last WHERE uuid = 'DELETE'`,
		`WITH last AS (SELECT uuid AS "delete" FROM bookings) SELECT COUNT(*) FROM last -- UPDATE it elsewhere`,
	} {
		heard := &heard{TB: t}
		inboxtest.Replay(heard, ledger(accounts(handled(func(p *inboxtest.Process, msg *message.Message) error {
			var n int
			return errors.Join(p.DB.GetContext(msg.Context(), &n, query), addInTx(msg))
		}))), "crash before m1 COMMIT")
		assert.Empty(t, heard.String(), query)
	}
}

// A handler without an inbox writes and publishes as it likes, also while another one has a transaction of the inbox. What its
// context does not tell is not blamed on the other one.
func TestTwoHandlersAtOnce(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	heard := &heard{TB: t}
	begun, noted := make(chan struct{}), make(chan struct{})
	begin, note := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(noted) })
	s := ledger(accounts(func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error {
			defer begin()
			err := addInTx(msg)
			begin()
			<-noted
			return err
		}).AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		p.Router.AddConsumerHandler("note", "notes", p.Subscriber, func(msg *message.Message) error {
			<-begun
			defer note()
			const insert = `INSERT INTO once (uuid, amount) VALUES ($1, 1) ON CONFLICT DO NOTHING`
			_, err := p.DB.ExecContext(msg.Context(), insert, "with its context")
			if err == nil {
				_, err = p.DB.ExecContext(t.Context(), insert, "without it")
			}
			return errors.Join(err, p.Publisher.Publish("receipts", message.NewMessage("a receipt", nil)))
		})
		return nil
	}))
	s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
	s.Inputs = append(s.Inputs, inboxtest.To("notes", message.NewMessage("a note", nil))...)
	s.InFlight, s.Want = 3, 17
	inboxtest.Replay(heard, s, "crash before m1 ACK")
	assert.Empty(t, heard.String())
}

// A fault that does not happen proves nothing.
func TestReplayOfAFaultThatDoesNotHappen(t *testing.T) {
	heard := &heard{TB: t}
	inboxtest.Replay(heard, accounts(right), "fail before m1 UPDATE account")
	assert.Equal(t, "inboxtest: fail before m1 UPDATE account: the service makes no such call: take a fault that Faults lists", heard.String())
}

// A call is the handler's however deep its stack is: the transaction may be used there, and a publish before the commit is found there.
func TestADeepStack(t *testing.T) {
	for name, handler := range map[string]struct {
		act   func(p *inboxtest.Process, msg *message.Message) error
		found string
	}{
		"right": {act: func(_ *inboxtest.Process, msg *message.Message) error { return addInTx(msg) }},
		"wrong": {found: "published to receipts before the commit", act: func(p *inboxtest.Process, msg *message.Message) error {
			return errors.Join(addInTx(msg), p.Publisher.Publish("receipts", message.NewMessage("receipt of "+msg.UUID, msg.Payload)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			heard := &heard{TB: t}
			s := accounts(handled(func(p *inboxtest.Process, msg *message.Message) error {
				return deep(500, func() error { return handler.act(p, msg) })
			}))
			inboxtest.Replay(heard, s, "crash before m1 COMMIT")
			if handler.found == "" {
				assert.Empty(t, heard.String())
			}
			assert.Contains(t, heard.String(), handler.found)
		})
	}
}

// deep calls act under so many functions.
func deep(functions int, act func() error) error {
	if functions == 0 {
		return act()
	}
	return deep(functions-1, act)
}

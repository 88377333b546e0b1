package inboxtest_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// On PostgreSQL a handler that rolls back to a savepoint continues its transaction after a refused statement, whose effect is lost.
// No other statement continues it, and no savepoint that has been released.
func TestARollbackToASavepoint(t *testing.T) {
	db := testdb.On(t, "postgres", testdb.Empty())
	for _, c := range []struct {
		name          string
		before, after []string // the refused statement
		lost          bool
	}{
		{"TO", []string{`SAVEPOINT s`}, []string{`ROLLBACK TO s`}, true},
		{"in other words", []string{`SAVEPOINT s`}, []string{`rollback work -- again
			to savepoint "s"`}, true},
		{"an outer one", []string{`SAVEPOINT s`, `SAVEPOINT t`}, []string{`ROLLBACK TRANSACTION TO SAVEPOINT s`}, true},
		{"one that is released", []string{`SAVEPOINT s`, `RELEASE s`}, []string{`ROLLBACK TO s`}, false},
		{"one that is set too late", nil, []string{`SAVEPOINT s`, `ROLLBACK TO s`}, false},
		{"nothing", []string{`SAVEPOINT s`}, []string{`RELEASE s`}, false},
	} {
		heard := &heard{TB: t}
		s := accounts(func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store}.Middleware) // a timeout would roll back what is to be committed
			p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error {
				return swallows(msg, c.before, c.after)
			})
			return nil
		})
		s.Databases = []inboxtest.Database{{Driver: db.Driver, DSN: db.DSN}}
		inboxtest.Replay(heard, s, "fail before m1 UPDATE accounts")
		if c.lost {
			assert.Contains(t, heard.String(), "I1, I2: the ledger is\n    5\n  instead of\n    15", c.name)
		} else {
			assert.Empty(t, heard.String(), c.name)
		}
	}
}

// swallows runs statements before an update, and others if it is refused, whose errors it returns instead of that of the update.
func swallows(msg *message.Message, before, after []string) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	all := func(statements []string) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(msg.Context(), s); err != nil {
				return err
			}
		}
		return nil
	}
	if err := all(before); err != nil {
		return err
	}
	if add(msg, tx) == nil {
		return nil
	}
	return all(after)
}

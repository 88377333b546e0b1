package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Each of these services looks right, works, and loses or doubles something when it is
// disturbed in the right moment.
func TestWrongServicesAreFound(t *testing.T) {
	for _, wrong := range []struct {
		name  string
		wire  func(p *inboxtest.Process, store *inbox.Store) error
		fault string                               // one that shows it …
		check func(testing.TB, inboxtest.Scenario) // … or what does
		want  []string                             // in what is reported
	}{
		{
			name:  "an effect outside of the transaction",
			fault: "crash before m1 COMMIT",
			wire: handled(func(p *inboxtest.Process, msg *message.Message) error {
				if _, err := inbox.Tx(msg.Context()); err != nil {
					return err
				}
				return add(msg, p.DB)
			}),
			want: []string{"written outside of the inbox's transaction", "wrong_test.go:", "use inbox.Tx"},
		},
		{
			name:  "an effect outside of the transaction, by a statement that begins with WITH and has several lines",
			fault: "crash before m1 COMMIT",
			wire:  beside("WITH one (n) AS (\n\tSELECT amount FROM bookings\n)\nUPDATE accounts\nSET balance = balance + 1"),
			want:  []string{"written outside of the inbox's transaction: WITH one", "wrong_test.go:", " m1 WITH accounts"},
		},
		{
			name:  "an effect outside of the transaction, by a statement that begins with comments, as those of sqlc do",
			fault: "crash before m1 COMMIT",
			wire:  beside("-- name: AddOne :exec\n/* one\nmore */ UPDATE accounts SET balance = balance + 1"),
			want:  []string{"written outside of the inbox's transaction: UPDATE accounts", "wrong_test.go:", " m1 UPDATE accounts"},
		},
		{
			name:  "published before the commit",
			fault: "lose before m1 COMMIT #2",
			wire: handled(func(p *inboxtest.Process, msg *message.Message) error {
				if err := addInTx(msg); err != nil {
					return err
				}
				return p.Publisher.Publish("receipts", message.NewMessage(watermill.NewUUID(), msg.Payload))
			}),
			want: []string{"published to receipts before the commit", "wrong_test.go:"},
		},
		{
			name:  "acked first",
			fault: "crash before m1 UPDATE accounts",
			wire: handled(func(_ *inboxtest.Process, msg *message.Message) error {
				msg.Ack()
				return addInTx(msg)
			}),
			want: []string{"wrong_test.go:", ": m1 is acked while its handler runs", "the ledger is"},
		},
		{
			name:  "InstantAck outside of nothing that remembers",
			fault: "crash before m1 UPDATE accounts",
			wire:  plain(func(p *inboxtest.Process, msg *message.Message) error { return add(msg, p.DB) }, middleware.InstantAck),
			want:  []string{"the ledger is"},
		},
		{
			name:  "Watermill's Deduplicator",
			fault: "crash after m1 UPDATE accounts",
			wire:  plain(func(p *inboxtest.Process, msg *message.Message) error { return add(msg, p.DB) }, deduplicator()),
			want:  []string{"the ledger is"},
		},
		{
			name:  "a transaction of its own",
			fault: "lose after m1 COMMIT",
			wire: plain(func(p *inboxtest.Process, msg *message.Message) error {
				tx, err := p.DB.BeginTxx(msg.Context(), nil)
				if err != nil {
					return err
				}
				if err := add(msg, tx); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				return tx.Commit()
			}),
			want: []string{"the ledger is", "lose after m1 COMMIT"},
		},
		{
			name:  "PoisonQueue inside of Inbox",
			fault: "fail before m1 UPDATE accounts",
			wire: func(p *inboxtest.Process, store *inbox.Store) error {
				poison, err := middleware.PoisonQueue(p.Publisher, "poison")
				if err != nil {
					return err
				}
				p.Router.AddMiddleware(inboxOf(store), poison)
				p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
				return nil
			},
			want: []string{"published to poison before the commit", "exhaust_test.go:", "I1, I4: published under another UUID"},
		},
		{
			name:  "Retry inside of Inbox",
			fault: "fail before m1 UPDATE accounts",
			wire: func(p *inboxtest.Process, store *inbox.Store) error {
				p.Router.AddMiddleware(inboxOf(store), middleware.Retry{MaxRetries: 2}.Middleware)
				p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
				return nil
			},
			want: []string{"wrong_test.go:", ": the handler runs again in the transaction in which it failed", "which is middleware.Retry.Middleware, repeats", "before Inbox"},
		},
		{
			name:  "a goroutine with the transaction",
			fault: "crash before m1 COMMIT",
			wire: handled(func(_ *inboxtest.Process, msg *message.Message) error {
				var both sync.WaitGroup
				var err error
				both.Go(func() { err = addInTx(msg) })
				both.Wait()
				return err
			}),
			want: []string{"the transaction is used outside of the handler's own goroutine"},
		},
		{
			name:  "a key made in the consumer",
			fault: "crash after m1 COMMIT #2",
			wire:  keyed(inbox.ByFunc("random", func(*message.Message) (string, error) { return watermill.NewUUID(), nil })),
			want:  []string{"crash after m1 COMMIT #2", "I1, I2: the ledger is"},
		},
		{
			name:  "an offset without its topic as the key",
			fault: "crash before m1 COMMIT",
			wire: func(p *inboxtest.Process, store *inbox.Store) error {
				offset := inbox.ByFunc("offset", func(*message.Message) (string, error) { return "0", nil })
				p.Router.AddMiddleware(millrace.Inbox{Store: store, Key: offset, Consumer: "book", Timeout: timeout}.Middleware)
				p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
				return nil
			},
			want: []string{"the undisturbed play has a wrong outcome", "instead of"},
		},
		{
			name:  "a swallowed SQL error",
			fault: "fail before m1 UPDATE accounts",
			wire: handled(func(_ *inboxtest.Process, msg *message.Message) error {
				_ = addInTx(msg)
				return nil
			}),
			want: []string{"fail before m1 UPDATE accounts", "I1, I2: the ledger is"},
		},
		{
			name:  "a swallowed SQL error of a handler that a queue runs from its table",
			fault: "fail before m1stored UPDATE accounts",
			wire: queued(func(_ *inboxtest.Process, msg *message.Message) error {
				_ = addInTx(msg)
				return nil
			}),
			want: []string{"fail before m1stored UPDATE accounts", "I1, I2: the ledger is"},
		},
		{
			name:  "an effect outside of the transaction, by a handler that a queue runs from its table",
			fault: "crash before m1stored COMMIT",
			wire: queued(func(p *inboxtest.Process, msg *message.Message) error {
				return errors.Join(addInTx(msg), p.Publisher.Publish("receipts", msg.Copy()), add(msg, p.DB))
			}),
			want: []string{"written outside of the inbox's transaction", "published to receipts before the commit", "wrong_test.go:"},
		},
		{
			name:  "acked first, by a handler that a queue runs from its table",
			fault: "crash before m1stored UPDATE accounts",
			wire: queued(func(_ *inboxtest.Process, msg *message.Message) error {
				msg.Ack()
				return addInTx(msg)
			}),
			want: []string{"wrong_test.go:", ": m1stored is acked while its handler runs"},
		},
		{
			name:  "a look before the insert, without a constraint",
			fault: "copy at m1 INSERT bookings",
			wire: plain(func(p *inboxtest.Process, msg *message.Message) error {
				var seen int
				err := p.DB.GetContext(msg.Context(), &seen, `SELECT COUNT(*) FROM bookings WHERE uuid = '`+msg.UUID+`'`)
				if err != nil || seen > 0 {
					return err
				}
				_, err = p.DB.ExecContext(msg.Context(), `INSERT INTO bookings (uuid, amount) VALUES ('`+msg.UUID+`', `+string(msg.Payload)+`)`)
				return err
			}),
			want: []string{"copy at m1 INSERT bookings", "the ledger is"},
		},
		{
			name:  "a delta without a key",
			fault: "crash after m1 UPDATE accounts",
			wire:  plain(func(p *inboxtest.Process, msg *message.Message) error { return add(msg, p.DB) }),
			want:  []string{"crash after m1 UPDATE accounts", "the ledger is"},
		},
		{
			name:  "published after the commit, by whom the second time nothing is to be done",
			fault: "crash after m1 INSERT once",
			wire: plain(func(p *inboxtest.Process, msg *message.Message) error {
				done, err := p.DB.ExecContext(msg.Context(), `INSERT INTO once (uuid, amount) VALUES ('`+msg.UUID+`', `+string(msg.Payload)+`) ON CONFLICT DO NOTHING`)
				if err != nil {
					return err
				}
				if n, err := done.RowsAffected(); n == 0 {
					return err
				}
				return p.Publisher.Publish("receipts", message.NewMessage("receipt of "+msg.UUID, msg.Payload))
			}),
			want: []string{"crash after m1 INSERT once", "I3: never published"},
		},
		{
			name:  "Deduplicate for a handler that needs Inbox",
			fault: "crash after m1 UPDATE accounts",
			wire: func(p *inboxtest.Process, store *inbox.Store) error {
				p.Router.AddMiddleware(millrace.Deduplicate{Claims: store.Leases(), Lease: time.Second}.Middleware)
				p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error { return add(msg, p.DB) })
				return nil
			},
			want: []string{"crash after m1 UPDATE accounts", "the ledger is"},
		},
		{
			name:  "a mail, and no rule for replays",
			check: inboxtest.ReplayMode,
			wire: handled(func(p *inboxtest.Process, msg *message.Message) error {
				return errors.Join(addInTx(msg), p.External(msg.Context(), "mail", func() error { return nil }))
			}),
			want: []string{"called again by the replay: m1 CALL mail", "set Inbox.OnReplay to inbox.ReplayRefuse"},
		},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			t.Parallel()
			heard := &heard{TB: t}
			switch {
			case wrong.check != nil:
				wrong.check(heard, ledger(accounts(wrong.wire)))
			case testdb.Long():
				inboxtest.Exhaust(heard, ledger(accounts(wrong.wire)))
			default:
				inboxtest.Replay(heard, ledger(accounts(wrong.wire)), wrong.fault)
				for tries := 1; strings.HasPrefix(wrong.fault, "copy") && heard.String() == "" && tries < 5; tries++ {
					inboxtest.Replay(heard, ledger(accounts(wrong.wire)), wrong.fault) // a busy machine may hold the copy up
				}
			}
			text := heard.String()
			require.NotEmpty(t, text, "nothing was found")
			for _, want := range wrong.want {
				if testdb.Long() && wrong.check == nil { // others may be told first
					break
				}
				assert.Contains(t, text, want)
			}
		})
	}
}

const timeout = 300 * time.Millisecond

func inboxOf(store *inbox.Store) message.HandlerMiddleware {
	return millrace.Inbox{Store: store, Timeout: timeout}.Middleware
}

// handled is a service with Inbox and a handler.
func handled(handler func(p *inboxtest.Process, msg *message.Message) error) func(*inboxtest.Process, *inbox.Store) error {
	return func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(inboxOf(store))
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error { return handler(p, msg) })
		return nil
	}
}

// queued is handled, behind a queue that stores each message first.
func queued(handler func(p *inboxtest.Process, msg *message.Message) error) func(*inboxtest.Process, *inbox.Store) error {
	return func(p *inboxtest.Process, store *inbox.Store) error {
		sub, err := pubsub.Durable{
			Store: store, Consumer: "book", Mode: pubsub.StoreFirst, Lease: time.Second, MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
		}.Decorate(p.Subscriber)
		if err != nil {
			return err
		}
		p.Subscriber = sub
		return handled(handler)(p, store)
	}
}

// beside is a service whose handler runs a statement outside of its transaction.
func beside(statement string) func(*inboxtest.Process, *inbox.Store) error {
	return handled(func(p *inboxtest.Process, msg *message.Message) error {
		if _, err := inbox.Tx(msg.Context()); err != nil {
			return err
		}
		_, err := p.DB.ExecContext(msg.Context(), statement)
		return err
	})
}

// keyed is a right handler behind an Inbox with a key.
func keyed(key inbox.Key) func(*inboxtest.Process, *inbox.Store) error {
	return func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Key: key, Timeout: timeout}.Middleware)
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, addInTx)
		return nil
	}
}

// plain is a service without Millrace.
func plain(handler func(p *inboxtest.Process, msg *message.Message) error, chain ...message.HandlerMiddleware) func(*inboxtest.Process, *inbox.Store) error {
	return func(p *inboxtest.Process, _ *inbox.Store) error {
		p.Router.AddMiddleware(chain...)
		p.Router.AddConsumerHandler("book", "payments", p.Subscriber, func(msg *message.Message) error { return handler(p, msg) })
		return nil
	}
}

func deduplicator() message.HandlerMiddleware {
	return (&middleware.Deduplicator{
		KeyFactory: func(msg *message.Message) (string, error) { return msg.UUID, nil }, Timeout: time.Second,
	}).Middleware
}

func addInTx(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	return add(msg, tx)
}

func add(msg *message.Message, db sqlx.ExecerContext) error {
	_, err := db.ExecContext(msg.Context(), `UPDATE accounts SET balance = balance + `+string(msg.Payload)+` WHERE id = 1`)
	return err
}

// ledger has the tables that wrong services believe in, and counts what is in them.
func ledger(s inboxtest.Scenario) inboxtest.Scenario {
	prepare := s.Prepare
	s.Prepare = func(ctx context.Context, db *sqlx.DB) error {
		if err := prepare(ctx, db); err != nil {
			return err
		}
		for _, ddl := range []string{
			`CREATE TABLE bookings (uuid TEXT NOT NULL, amount INTEGER NOT NULL)`,
			`CREATE TABLE once (uuid TEXT NOT NULL PRIMARY KEY, amount INTEGER NOT NULL)`,
		} {
			if _, err := db.ExecContext(ctx, ddl); err != nil {
				return err
			}
		}
		return nil
	}
	s.Ledger = func(ctx context.Context, db *sqlx.DB) (any, error) {
		var sum int
		return sum, db.GetContext(ctx, &sum, `
			SELECT balance + (SELECT COALESCE(SUM(amount), 0) FROM bookings) + (SELECT COALESCE(SUM(amount), 0) FROM once)
			FROM accounts`)
	}
	return s
}

// heard is a test that keeps what it is told.
type heard struct {
	testing.TB
	mu    sync.Mutex
	lines []string
}

func (h *heard) Errorf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}

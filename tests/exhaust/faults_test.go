package exhaust_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// seconds are tests that take seconds: some have their turn each day.
var seconds = []string{
	"TestStepsWithEveryFault", "TestPanics", "TestAWrongBatchIsFound", "TestCrashWindows", "TestInterruptedStatements", "TestStepsOfCopies",
}

// TestInterruptedStatements has the context of each statement of each service end while it runs.
func TestInterruptedStatements(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	dialects, servers, optional := []string{"sqlite"}, []string{"sqlite", "postgres"}, shortened(optional)
	if testdb.Long() {
		dialects, servers = all, all
	}
	onEach(t, services, dialects, abreast, inboxtest.InterruptedStatement)
	onEach(t, optional, servers, 1, inboxtest.InterruptedStatement)
}

// optional is a handler that goes on where one of its statements fails.
var optional = map[string]service{"an optional statement": {
	inputs: payments,
	want:   booked,
	wire: func(p *inboxtest.Process, store *inbox.Store) error {
		p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware)
		p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			_, _ = tx.ExecContext(msg.Context(), `UPDATE accounts SET balance = balance WHERE id = 'nobody'`)
			return book(msg)
		})
		return nil
	},
}}

// TestPanics has the handler of each service panic, and the callbacks of one.
func TestPanics(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	dialects := []string{"sqlite"}
	if testdb.Long() {
		dialects = all
	}
	onEach(t, services, dialects, abreast, inboxtest.Panics)
	onEach(t, shortened(callbacks), dialects, 1, inboxtest.Panics)
}

// shortened gives services, which book payments, the first of them alone, unless there is time for all.
func shortened(services map[string]service) map[string]service {
	if testdb.Long() {
		return services
	}
	short := map[string]service{}
	for name, s := range services {
		s.inputs, s.want = payments[:1], oneBooked
		short[name] = s
	}
	return short
}

// callbacks are those of Inbox and of the Store, each of which can panic.
var callbacks = map[string]service{
	"callbacks of Inbox": {
		inputs: payments,
		want:   booked,
		wire: func(p *inboxtest.Process, _ *inbox.Store) error {
			store, guard, err := called(p)
			if err != nil {
				return err
			}
			p.Router.AddMiddleware(guard.Middleware)
			p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, once(book))
			p.Router.AddPlugin(store.Plugin())
			return nil
		},
	},
}

// called returns a store and an inbox whose callbacks can panic. One message at a time has a
// transaction, so that one that is kept for ever stops the others. Key and Fingerprint are left out: a message
// of which they panic is kept for an operator, which tests/durable sees.
func called(p *inboxtest.Process) (*inbox.Store, millrace.Inbox, error) {
	store, err := inbox.NewStore(p.DB, inbox.Config{
		Logger: p.Logger, MaxInFlight: 1, Observers: []inbox.Observer{observer(p)}, Payloads: codec{p},
	})
	if err != nil {
		return nil, millrace.Inbox{}, err
	}
	p.OnClose(store.Close)
	return store, millrace.Inbox{
		Store: store, Timeout: timeout,
		Options: inbox.Options{
			RecordFailures: true,
			MessageTime: func(msg *message.Message) (time.Time, bool) {
				p.Callback(msg.Context(), "MessageTime")
				return time.Now(), true
			},
			Redelivered: func(msg *message.Message) bool {
				p.Callback(msg.Context(), "Redelivered")
				return true
			},
			Describe: func(msg *message.Message) (string, string) {
				p.Callback(msg.Context(), "Describe")
				return "Payment", "1"
			},
			Before: func(msg *message.Message) error {
				p.Callback(msg.Context(), "Before")
				return nil
			},
			OnBegin: func(ctx context.Context, _ *sqlx.Tx, _ *message.Message) error {
				p.Callback(ctx, "OnBegin")
				return nil
			},
		},
	}, nil
}

// once has the first run of each message fail, so that there are failures to record.
func once(handle message.HandlerFunc) message.HandlerFunc {
	var failed sync.Map
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, before := failed.LoadOrStore(msg.UUID, true); !before {
			return nil, errors.New("the first run fails")
		}
		return handle(msg)
	}
}

func observer(p *inboxtest.Process) inbox.Observer {
	return inbox.On(func(ctx context.Context, e inbox.Event) { p.Callback(ctx, e.Kind.String()) },
		inbox.KindCompleted, inbox.KindFailed, inbox.KindDuplicate)
}

type codec struct{ *inboxtest.Process }

func (c codec) Seal(ctx context.Context, _ payload.Info, payload []byte) ([]byte, error) {
	c.Callback(ctx, "Seal")
	return payload, nil
}

func (c codec) Open(ctx context.Context, _ payload.Info, sealed []byte) ([]byte, error) {
	c.Callback(ctx, "Open")
	return sealed, nil
}

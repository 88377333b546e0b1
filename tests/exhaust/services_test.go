package exhaust_test

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
)

// services are the ways in which Millrace is used.
var services = map[string]service{
	"Inbox": {
		inputs: payments,
		want:   booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware)
			p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
			return nil
		},
	},
	"Inbox and outbox": {
		inputs: payments,
		want:   booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			out, err := relayed(p)
			if err != nil {
				return err
			}
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Outbox: out, Timeout: timeout}.Middleware)
			p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, book)
			return nil
		},
	},
	"Batch and outbox": {
		inputs: payments, hands: len(payments),
		want: booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			out, err := relayed(p)
			if err != nil {
				return err
			}
			batch := millrace.Batch{
				Inbox: millrace.Inbox{Store: store, Outbox: out, Timeout: timeout}, Max: len(payments), Linger: 50 * time.Millisecond,
			}
			p.Router.AddHandler("book", "payments", p.Subscriber, "receipts", p.Publisher, batch.Handler(bookAll))
			return nil
		},
	},
	"Batch with a gate":                           batchWithGate(len(shuffled)),
	"Batch with a gate, which holds and releases": batchWithGate(2),
	"Batch with a gate, the newest of each account": {
		inputs: shuffled, hands: len(shuffled),
		want: []account{{"ada", 7, "a3"}, {"bob", 20, "b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			batch := millrace.Batch{
				Inbox: millrace.Inbox{Store: store, Timeout: timeout}, Gate: &millrace.VersionGate{OnGap: inbox.GapLatest},
				Max: len(shuffled), Linger: 50 * time.Millisecond,
			}
			return consumeBatches(p, durable(store, pubsub.StoreOnFailure), batch, each(replace))
		},
	},
	"Batch behind Durable, storing first": {
		inputs: payments, hands: len(payments),
		want: booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Timeout: timeout}, Max: len(payments), Linger: 50 * time.Millisecond}
			return consumeBatches(p, durable(store, pubsub.StoreFirst), batch, each(bookOnly))
		},
	},
	"VersionGate that holds": {
		inputs: shuffled, order: true,
		want: []account{{"ada", 22, "a1 a2 a3"}, {"bob", 20, "b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware, millrace.VersionGate{}.Middleware)
			return consume(p, durable(store, pubsub.StoreOnFailure))
		},
	},
	"VersionGate that holds, in the order of a key": {
		inputs: shuffled, order: true,
		want: []account{{"ada", 22, "a1 a2 a3"}, {"bob", 20, "b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware, millrace.VersionGate{}.Middleware)
			queue := durable(store, pubsub.StoreFirst)
			queue.OrderKey = func(msg *message.Message) (string, error) { return msg.Metadata.Get("account"), nil }
			return consume(p, queue)
		},
	},
	"Durable, storing on failure": {
		inputs: payments,
		want:   booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware)
			return produce(p, durable(store, pubsub.StoreOnFailure), "payments")
		},
	},
	"Durable, storing first": {
		inputs: payments,
		want:   booked,
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout}.Middleware)
			return produce(p, durable(store, pubsub.StoreFirst), "payments")
		},
	},
	"a pipeline": {
		inputs: payments,
		want:   []account{{"ada", 15, "booking-of-a1 booking-of-a2"}, {"bob", 20, "booking-of-b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			out, err := relayed(p)
			if err != nil {
				return err
			}
			p.Router.AddMiddleware(millrace.Inbox{Store: store, Outbox: out, Timeout: timeout}.Middleware)
			p.Router.AddHandler("order", "payments", p.Subscriber, "bookings", p.Publisher, pass)
			return produce(p, durable(store, pubsub.StoreFirst), "bookings")
		},
	},
}

// timeout is how long a process waits for an answer that comes too late. Where many plays share
// a machine, a run that nothing disturbs needs some of it too.
const timeout = 800 * time.Millisecond

// batchWithGate handles so many messages at once in the order of their versions.
func batchWithGate(most int) service {
	return service{
		inputs: shuffled, hands: len(shuffled), order: true,
		want: []account{{"ada", 22, "a1 a2 a3"}, {"bob", 20, "b1"}},
		wire: func(p *inboxtest.Process, store *inbox.Store) error {
			batch := millrace.Batch{
				Inbox: millrace.Inbox{Store: store, Timeout: timeout}, Gate: &millrace.VersionGate{}, Max: most, Linger: 50 * time.Millisecond,
			}
			return consumeBatches(p, durable(store, pubsub.StoreOnFailure), batch, each(bookOnly))
		},
	}
}

func durable(store *inbox.Store, mode pubsub.Mode) pubsub.Durable {
	return pubsub.Durable{
		Store: store, Consumer: "book", Mode: mode, Lease: time.Second, Poll: 50 * time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, MaxAttempts: 100,
	}
}

// produce adds the handler that returns receipts, behind a durable queue.
func produce(p *inboxtest.Process, queue pubsub.Durable, topic string) error {
	sub, err := queue.Decorate(p.Subscriber)
	if err == nil {
		p.Router.AddHandler("book", topic, sub, "receipts", p.Publisher, book)
	}
	return err
}

// consume adds the handler that returns nothing, behind a durable queue.
func consume(p *inboxtest.Process, queue pubsub.Durable) error {
	sub, err := queue.Decorate(p.Subscriber)
	if err == nil {
		p.Router.AddConsumerHandler("book", "payments", sub, bookOnly)
	}
	return err
}

// consumeBatches adds the handler of batches that returns nothing, behind a durable queue.
func consumeBatches(
	p *inboxtest.Process, queue pubsub.Durable, batch millrace.Batch, h func(ctx context.Context, msgs []*message.Message) error,
) error {
	sub, err := queue.Decorate(p.Subscriber)
	if err == nil {
		p.Router.AddConsumerHandler("book", "payments", sub, batch.ConsumerHandler(h))
	}
	return err
}

// each makes a handler of batches that calls h for each message.
func each(h message.NoPublishHandlerFunc) func(context.Context, []*message.Message) error {
	return func(_ context.Context, msgs []*message.Message) error {
		for _, msg := range msgs {
			if err := h(msg); err != nil { //nolint:contextcheck // it uses the context of the message
				return err
			}
		}
		return nil
	}
}

// replace makes a payment the state of its account.
func replace(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(), tx.Rebind(`UPDATE accounts SET balance = `+string(msg.Payload)+`, history = ? WHERE id = ?`),
		msg.UUID, msg.Metadata.Get("account"))
	return err
}

// relayed returns a publisher whose messages a relay of p sends.
func relayed(p *inboxtest.Process) (*outbox.Publisher, error) {
	out, err := outbox.NewPublisher(p.DB, outbox.Config{OrderKey: outbox.ByMetadata("account")})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(p.DB, p.Publisher, outbox.RelayConfig{
		Lease: 2 * time.Second, Poll: 50 * time.Millisecond, Drain: time.Second,
		MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, MaxAttempts: outbox.Unlimited,
	})
	if err != nil {
		return nil, err
	}
	p.Go(relay.Run)
	return out, nil
}

// payments are one of each account, and another of the first.
var payments = inboxtest.To("payments", payment("a1", "ada", "10", 1), payment("b1", "bob", "20", 1), payment("a2", "ada", "5", 2))

// booked is what is right when they are handled once each.
var booked = []account{{"ada", 15, "a1 a2"}, {"bob", 20, "b1"}}

// shuffled has versions of an account before those that come first.
var shuffled = inboxtest.To("payments",
	payment("a2", "ada", "5", 2), payment("b1", "bob", "20", 1), payment("a3", "ada", "7", 3), payment("a1", "ada", "10", 1))

func payment(uuid, account, amount string, version int64) *message.Message {
	msg := message.NewMessage(uuid, []byte(amount))
	msg.Metadata.Set("account", account)
	outbox.Stamp(msg, account, version)
	return msg
}

// book books a payment and returns a receipt.
func book(msg *message.Message) ([]*message.Message, error) {
	if err := bookOnly(msg); err != nil {
		return nil, err
	}
	receipt := message.NewMessage("receipt of "+msg.UUID, msg.Payload)
	receipt.Metadata.Set("account", msg.Metadata.Get("account"))
	return []*message.Message{receipt}, nil
}

// bookAll books payments in one transaction.
func bookAll(_ context.Context, msgs []*message.Message) (receipts []*message.Message, err error) {
	for _, msg := range msgs {
		made, err := book(msg) //nolint:contextcheck // it uses the context of the message
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, made...)
	}
	return receipts, nil
}

func bookOnly(msg *message.Message) error { return bookIn(msg.Context(), msg) }

func bookIn(ctx context.Context, msg *message.Message) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	amount, account := string(msg.Payload), msg.Metadata.Get("account")
	_, err = tx.ExecContext(ctx, tx.Rebind(`UPDATE accounts SET balance = balance + `+amount+` WHERE id = ?`), account)
	if err != nil {
		return err
	}
	var history string
	err = tx.GetContext(ctx, &history, tx.Rebind(`SELECT history FROM accounts WHERE id = ?`), account)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, tx.Rebind(`UPDATE accounts SET history = ? WHERE id = ?`), history+" "+msg.UUID, account)
	return err
}

// pass hands a payment on.
func pass(msg *message.Message) ([]*message.Message, error) {
	if _, err := inbox.Tx(msg.Context()); err != nil {
		return nil, err
	}
	next := message.NewMessage("booking-of-"+msg.UUID, msg.Payload)
	next.Metadata.Set("account", msg.Metadata.Get("account"))
	return []*message.Message{next}, nil
}

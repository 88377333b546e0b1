package exhaust_test

import (
	"context"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// TestReplays has each service replay what it has handled, remembered and forgotten: the accounts are
// built anew. A service that announces under new UUIDs suppresses, one that sends mails refuses.
func TestReplays(t *testing.T) {
	projections := maps.Clone(services)
	projections["Inbox that suppresses"] = announcing(inbox.ReplaySuppress, nil)
	projections["Durable, storing first, that suppresses"] = announcing(inbox.ReplaySuppress, storingFirst)
	onEach(t, projections, all, 1, func(t testing.TB, s inboxtest.Scenario) {
		s.Rebuild = func(ctx context.Context, db *sqlx.DB) error {
			_, err := db.ExecContext(ctx, `UPDATE accounts SET balance = 0, history = ''`)
			return err
		}
		inboxtest.ReplayMode(t, s)
	})
}

// TestRefusedReplays has services that mail replay what they have handled.
func TestRefusedReplays(t *testing.T) {
	onEach(t, map[string]service{
		"Inbox":                       mailing(nil),
		"Durable, storing on failure": mailing(func(s *inbox.Store) pubsub.Durable { return durable(s, pubsub.StoreOnFailure) }),
		"Durable, storing first":      mailing(storingFirst),
	}, all, 1, inboxtest.ReplayMode)
}

func storingFirst(s *inbox.Store) pubsub.Durable { return durable(s, pubsub.StoreFirst) }

// announcing is a service that returns and publishes something new in each run.
func announcing(rule inbox.ReplayRule, queue func(*inbox.Store) pubsub.Durable) service {
	return service{inputs: payments, want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		out, err := relayed(p)
		if err != nil {
			return err
		}
		return handle(p, store, rule, queue, func(msg *message.Message) ([]*message.Message, error) {
			mail := message.NewMessage(watermill.NewUUID(), msg.Payload)
			mail.Metadata.Set("account", msg.Metadata.Get("account"))
			mail.SetContext(msg.Context())
			if err := out.Publish("mails", mail); err != nil {
				return nil, err
			}
			return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, bookOnly(msg)
		})
	}}
}

// mailing is a service that does something outside of its transaction.
func mailing(queue func(*inbox.Store) pubsub.Durable) service {
	return service{inputs: payments, want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
		return handle(p, store, inbox.ReplayRefuse, queue, func(msg *message.Message) ([]*message.Message, error) {
			return nil, p.External(msg.Context(), "mail", func() error { return bookOnly(msg) })
		})
	}}
}

// handle wires a handler with a rule for replays, behind a queue or without one.
func handle(
	p *inboxtest.Process, store *inbox.Store, rule inbox.ReplayRule, queue func(*inbox.Store) pubsub.Durable, h message.HandlerFunc,
) error {
	sub := p.Subscriber
	if queue != nil {
		var err error
		if sub, err = queue(store).Decorate(sub); err != nil {
			return err
		}
	}
	p.Router.AddMiddleware(millrace.Inbox{Store: store, Timeout: timeout, Options: inbox.Options{OnReplay: rule}}.Middleware)
	p.Router.AddHandler("book", "payments", sub, "receipts", p.Publisher, h)
	return nil
}

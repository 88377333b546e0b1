package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/httpkey"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// newService wires the two halves. The first takes orders and stores, with each, the intent to
// send a mail: in one transaction, through the outbox. The second works the intents off.
func newService(db *sqlx.DB, broker message.Publisher, sub message.Subscriber, provider string) (*message.Router, *inbox.Store, *outbox.Relay, error) {
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	out, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{
		// They are 15 s and 1 s by default: a demo is in more of a hurry.
		Lease: 2 * time.Second, Poll: 50 * time.Millisecond,
	})
	if err != nil {
		return nil, nil, nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, nil, err
	}
	router.AddPlugin(store.Plugin())
	router.AddHandler("shop", "orders", sub, "mails", out, take).AddMiddleware(
		millrace.Inbox{Store: store, Outbox: out}.Middleware)
	router.AddConsumerHandler("sender", "mails", sub, sender{provider: provider}.send).AddMiddleware(
		millrace.Deduplicate{Claims: store.Leases(), Lease: time.Second}.Middleware) // a minute by default
	return router, store, relay, nil
}

// take stores an order and what is to be sent. The id of the intent is made of the order's message,
// so it is the same in each run.
func take(msg *message.Message) ([]*message.Message, error) {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(msg.Context(), `INSERT INTO orders (id) VALUES (?)`, string(msg.Payload)); err != nil {
		return nil, err
	}
	id, err := inbox.ID(msg.Context(), "mail")
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage(id, msg.Payload)}, nil
}

// sender sends mails. Its requests bring an Idempotency-Key, made of the intent.
type sender struct{ provider string }

var client = &http.Client{Transport: &httpkey.Transport{Required: true}}

func (s sender) send(msg *message.Message) error {
	_, err := inbox.Step{
		Name:       "mail",
		Idempotent: true,        // the provider honours the key: after a crash it is asked again
		Lease:      time.Second, // a minute by default
		Do: func(ctx context.Context, _ string) ([]byte, error) {
			return s.post(ctx, string(msg.Payload))
		},
	}.Run(msg.Context())
	return err
}

// post asks the provider for a mail and returns its receipt.
func (s sender) post(ctx context.Context, order string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider, strings.NewReader(order))
	if err != nil {
		return nil, inbox.NotDone(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	receipt, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		err = inbox.NotDone(fmt.Errorf("the provider answers %s", resp.Status))
	}
	return receipt, err
}

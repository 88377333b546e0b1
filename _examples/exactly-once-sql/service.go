package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
)

// bank posts payments to accounts and sends a receipt for each; statements add the receipts
// up again. Accounts and topics lie in two databases, which share no transaction.
type bank struct {
	router *message.Router
	store  *inbox.Store
	relay  *outbox.Relay
}

type payment struct {
	Account int `json:"account"`
	Amount  int `json:"amount"`
}

func newBank(accounts, topics *sqlx.DB, config inbox.Config) (*bank, error) {
	store, err := inbox.NewStore(accounts, config)
	if err != nil {
		return nil, err
	}
	out, err := outbox.NewPublisher(accounts, outbox.Config{})
	if err != nil {
		return nil, err
	}
	publisher, err := watermillsql.NewPublisher(topics, watermillsql.Config{})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(accounts, publisher, outbox.RelayConfig{
		Lease: 2 * time.Second, // after which a killed relay is replaced: the default is 15 s
	})
	if err != nil {
		return nil, err
	}
	subscriber, err := watermillsql.NewSubscriber(topics, watermillsql.SubscriberConfig{
		ConsumerGroup: "bank",
		// Both are 1 s by default: a demo is in more of a hurry.
		PollInterval:   50 * time.Millisecond,
		ResendInterval: 50 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, config.Logger)
	if err != nil {
		return nil, err
	}
	millrace.Inbox{Store: store, Outbox: out}.AddTo(router)
	router.AddHandler("accounts", "payments", subscriber, "receipts", out, post)
	router.AddConsumerHandler("statements", "receipts", subscriber, state)
	return &bank{router: router, store: store, relay: relay}, nil
}

// post books a payment. The receipt that it returns is stored in the same transaction, by
// Inbox.Outbox, and sent by the relay.
func post(msg *message.Message) ([]*message.Message, error) {
	var p payment
	if err := json.Unmarshal(msg.Payload, &p); err != nil {
		return nil, err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(msg.Context(),
		`UPDATE account SET balance = balance + $1, payments = payments + 1 WHERE id = $2`, p.Amount, p.Account)
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
}

// state adds a receipt to its account's statement.
func state(msg *message.Message) error {
	var p payment
	if err := json.Unmarshal(msg.Payload, &p); err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(),
		`UPDATE statement SET total = total + $1, receipts = receipts + 1 WHERE account = $2`, p.Amount, p.Account)
	return err
}

// run works until ctx ends.
func (b *bank) run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return b.relay.Run(running) })
	group.Go(func() error { return b.router.Run(running) })
	err := group.Wait()

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, b.store.Close(last))
}

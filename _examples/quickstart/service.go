package main

import (
	"context"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

type payment struct {
	Account int `json:"account"`
	Amount  int `json:"amount"`
}

// newService returns a router that posts the payments it receives, each of them once.
func newService(db *sqlx.DB, sub message.Subscriber, config inbox.Config) (*message.Router, *inbox.Store, error) {
	store, err := inbox.NewStore(db, config)
	if err != nil {
		return nil, nil, err
	}
	if err := store.Migrate(context.Background()); err != nil {
		return nil, nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, config.Logger)
	if err != nil {
		return nil, nil, err
	}
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("accounts", "payments", sub, post)
	return router, store, nil
}

// post is the handler: it takes the transaction from the message's context. The record that
// the message was handled is already in it.
func post(msg *message.Message) error {
	var p payment
	if err := json.Unmarshal(msg.Payload, &p); err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(),
		`UPDATE account SET balance = balance + ?, postings = postings + 1 WHERE id = ?`, p.Amount, p.Account)
	return err
}

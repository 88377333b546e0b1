package main

import (
	"context"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// change is an event: what happened to an account, and the balance that it had then. The
// metadata says which version of the account it is.
type change struct {
	Account int `json:"account"`
	Deposit int `json:"deposit"`
	Percent int `json:"percent"` // of interest, which follows the deposit
	Balance int `json:"balance"`
}

// consumer is the name of the handler, and so of the consumer.
const consumer = "accounts"

// newService returns a router that keeps a projection of accounts. Without a gate, changes
// are handled in the order in which they come.
func newService(
	db *sqlx.DB, sub message.Subscriber, gate *millrace.VersionGate, handle message.NoPublishHandlerFunc,
	config inbox.Config,
) (*message.Router, *inbox.Store, error) {
	store, err := inbox.NewStore(db, config)
	if err != nil {
		return nil, nil, err
	}
	if err := store.Migrate(context.Background()); err != nil {
		return nil, nil, err
	}
	sub, err = pubsub.Durable{Store: store, Consumer: consumer}.Decorate(sub) // delivers what the gate holds
	if err != nil {
		return nil, nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, config.Logger)
	if err != nil {
		return nil, nil, err
	}
	millrace.Inbox{Store: store}.AddTo(router)
	if gate != nil {
		router.AddMiddleware(gate.Middleware)
	}
	router.AddConsumerHandler(consumer, "changes", sub, handle)
	return router, store, nil
}

// post does to the projection what happened to the account: right if every change comes,
// once and in order.
func post(msg *message.Message) error {
	return write(msg, `UPDATE account SET balance = (balance + :deposit) * (100 + :percent) / 100 WHERE id = :account`)
}

// show writes down the balance that a change brings: right if the newest comes last.
func show(msg *message.Message) error {
	return write(msg, `UPDATE account SET balance = :balance WHERE id = :account`)
}

func write(msg *message.Message, statement string) error {
	var c change
	if err := json.Unmarshal(msg.Payload, &c); err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(msg.Context(), statement, c)
	return err
}

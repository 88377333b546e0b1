package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
)

//go:embed policy.yaml
var rules []byte

// change is what a message says of a product.
type change struct {
	Product string `json:"product"`
	Version int    `json:"version"`
}

// newService wires the consumers. What applies to which of them stands in policy.yaml alone.
func newService(router *message.Router, db *sqlx.DB, sub message.Subscriber, out *outside, config inbox.Config) (*inbox.Store, error) {
	p, err := policy.Read(bytes.NewReader(rules), "policy.yaml")
	if err != nil {
		return nil, err
	}
	store, err := inbox.NewStore(db, config)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(context.Background()); err != nil {
		return nil, err
	}
	commands, err := outbox.NewPublisher(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	wired, err := p.Wire(router, policy.Wiring{Store: store, Outbox: commands}) // the one line
	if err != nil {
		return nil, err
	}
	for handler, handle := range map[string]message.HandlerFunc{
		"search-indexer":      write("search-indexer"),
		"notification-sender": out.mail,
		"analytics":           write("analytics"),
		"audit-copy":          write("audit-copy"),
		"workflow":            order,
		"cache-warmer":        out.warm,
	} {
		sub, err := wired.Subscriber(handler, sub) // with a queue where the policy wants one
		if err != nil {
			return nil, err
		}
		router.AddHandler(handler, "products", sub, "warehouse", commands, handle)
	}
	return store, nil
}

// write returns a handler that writes down what it is told, in the inbox's transaction.
func write(consumer string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		var c change
		if err := json.Unmarshal(msg.Payload, &c); err != nil {
			return nil, inbox.Terminal(err)
		}
		_, err = tx.ExecContext(msg.Context(), `INSERT INTO effects (consumer, product, version) VALUES (?, ?, ?)`,
			consumer, c.Product, c.Version)
		return nil, err
	}
}

// order returns a command, which goes through the outbox.
func order(msg *message.Message) ([]*message.Message, error) {
	command := message.NewMessage("order-"+msg.UUID, msg.Payload)
	_, err := write("workflow")(msg)
	return []*message.Message{command}, err
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

const tables = `
	CREATE TABLE customer    (id INTEGER PRIMARY KEY);
	CREATE TABLE charge      (order_id TEXT NOT NULL, amount INTEGER NOT NULL);
	CREATE TABLE dead_letter (reason TEXT NOT NULL);
	INSERT INTO customer (id) VALUES (1), (2);`

type order struct {
	Customer int `json:"customer"`
	Amount   int `json:"amount"`
}

// charge charges an order, in the transaction of the inbox.
func charge(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return inbox.Terminal(err)
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	var known bool
	err = tx.GetContext(msg.Context(), &known, `SELECT EXISTS (SELECT 1 FROM customer WHERE id = $1)`, o.Customer)
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("customer %d is unknown", o.Customer)
	}
	_, err = tx.ExecContext(msg.Context(), `INSERT INTO charge (order_id, amount) VALUES ($1, $2)`, msg.UUID, o.Amount)
	return err
}

// bury writes down a dead letter.
func bury(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(), `INSERT INTO dead_letter (reason) VALUES ($1)`, msg.Metadata.Get("reason"))
	return err
}

// bank fails after the work, so that what was written has to go again.
type bank struct {
	mu       sync.Mutex
	failures map[string][]error // to come, by order
	last     map[string]time.Time
}

func newBank() *bank {
	return &bank{
		failures: map[string][]error{
			"order-2": {errors.New("the bank does not answer"), errors.New("the bank does not answer")},
			"order-3": {inbox.RetryAfter(errors.New("the bank says to come again in 500 ms"), 500*time.Millisecond)},
		},
		last: make(map[string]time.Time),
	}
}

// attended is h with the bank's failures; each attempt is printed.
func (b *bank) attended(h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		pause := b.since(msg.UUID)
		err := h(msg)
		if err == nil {
			err = b.fail(msg.UUID)
		}
		result := "charged"
		if err != nil {
			result = err.Error()
		}
		fmt.Printf("  attempt %d%s: %s\n", inbox.Attempt(msg.Context()), pause, result)
		return err
	}
}

func (b *bank) fail(order string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.failures[order]
	if len(next) == 0 {
		return nil
	}
	b.failures[order] = next[1:]
	return next[0]
}

// since says how long ago the order was tried before.
func (b *bank) since(order string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, tried := b.last[order]
	b.last[order] = time.Now()
	if !tried {
		return ""
	}
	return fmt.Sprintf(", %d ms later", time.Since(before).Milliseconds())
}

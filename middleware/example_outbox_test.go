package middleware_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// A service that receives, writes and sends: an order arrives, is stored, and an invoice
// goes out, each once, although the order is delivered twice. The order itself was sent by an
// HTTP handler through the same outbox.
func ExampleInbox_outbox() {
	db, store, done := exampleStore(
		`CREATE TABLE orders (id TEXT PRIMARY KEY)`,
		`CREATE TABLE invoice (order_id TEXT PRIMARY KEY)`)
	defer done()
	logger := watermill.NopLogger{}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true, Persistent: true}, logger)

	out, err := outbox.NewPublisher(db, outbox.Config{OrderKey: outbox.ByMetadata("order_id")})
	check(err)
	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{Logger: logger})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	millrace.Inbox{Store: store, Outbox: out}.AddTo(router)
	router.AddHandler("billing", "orders", broker, "invoices", out,
		func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return nil, err
			}
			if _, err := tx.ExecContext(msg.Context(), `INSERT INTO invoice VALUES (?)`, string(msg.Payload)); err != nil {
				return nil, err
			}
			invoice := message.NewMessage(watermill.NewUUID(), msg.Payload)
			invoice.Metadata.Set("order_id", string(msg.Payload))
			return []*message.Message{invoice}, nil
		})

	ctx, stop := context.WithCancel(context.Background())
	relayed, routed := make(chan error, 1), make(chan error, 1)
	go func() { relayed <- relay.Run(ctx) }()
	go func() { routed <- router.Run(ctx) }()
	<-router.Running()

	// What an HTTP handler does.
	placeOrder := func(ctx context.Context, id string) error {
		return outbox.InTx(ctx, db, func(ctx context.Context, tx *sqlx.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id); err != nil {
				return err
			}
			order := message.NewMessage(id, []byte(id))
			order.Metadata.Set("order_id", id)
			order.SetContext(ctx) // says in which transaction it is stored
			return out.Publish("orders", order)
		})
	}
	check(placeOrder(ctx, "order-1"))
	check(broker.Publish("orders", message.NewMessage("order-1", []byte("order-1")))) // a copy

	invoices, err := broker.Subscribe(ctx, "invoices")
	check(err)
	invoice := <-invoices
	invoice.Ack()
	fmt.Println("invoice for", string(invoice.Payload))

	check(router.Close())
	stop()
	check(<-routed)
	check(<-relayed)
	var stored, left int
	check(db.Get(&stored, `SELECT COUNT(*) FROM invoice`))
	check(db.Get(&left, `SELECT COUNT(*) FROM millrace_outbox`))
	fmt.Println("invoices:", stored, "left in the outbox:", left)
	// Output:
	// invoice for order-1
	// invoices: 1 left in the outbox: 0
}

package middleware_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A projection: what is in flight is written by one statement, in one transaction.
func ExampleBatch() {
	db, store, done := exampleStore(`CREATE TABLE seen (id TEXT PRIMARY KEY)`)
	defer done()
	logger := watermill.NopLogger{}
	// A GoChannel has one message in flight, so here each batch is of one; RabbitMQ's subscriber has many.
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)

	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store}}
	router.AddPlugin(batch.Plugin())
	router.AddConsumerHandler("projection", "orders", broker, batch.ConsumerHandler(
		func(ctx context.Context, msgs []*message.Message) error {
			tx, err := inbox.Tx(ctx)
			if err != nil {
				return err
			}
			rows, args := []string{}, []any{}
			for _, msg := range msgs {
				rows, args = append(rows, "(?)"), append(args, string(msg.Payload))
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO seen (id) VALUES `+strings.Join(rows, ", "), args...)
			return err
		}))
	go func() { check(router.Run(context.Background())) }()
	<-router.Running()

	var sent sync.WaitGroup
	for i := range 20 {
		order := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "order %d", i))
		sent.Go(func() { check(broker.Publish("orders", order)) })
		sent.Go(func() { check(broker.Publish("orders", order.Copy())) }) // each is delivered twice
	}
	sent.Wait() // until all are acked
	check(router.Close())

	var n int
	check(db.Get(&n, `SELECT COUNT(*) FROM seen`))
	fmt.Println(n, "orders, each once")
	// Output: 20 orders, each once
}

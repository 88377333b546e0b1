package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

// printer is a broker that prints what it is given.
type printer struct{ received chan string }

func newPrinter() printer { return printer{received: make(chan string, 100)} }

func (p printer) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		p.received <- fmt.Sprintf("%s: %s", topic, m.Payload)
	}
	return nil
}

func (p printer) Close() error { return nil }

// print prints the next n messages.
func (p printer) print(n int) {
	for range n {
		fmt.Println(<-p.received)
	}
}

// A relay runs until its context ends, and finishes what is on its way. The messages of an
// order are sent in the order of their publishing, on whatever topics.
func ExampleRelay() {
	db, out, done := exampleOutbox(outbox.Config{OrderKey: outbox.ByMetadata("order_id"), Standalone: true})
	defer done()
	broker := newPrinter()
	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{Logger: watermill.NopLogger{}})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { check(relay.Run(ctx)) })

	for _, event := range []string{"placed", "paid", "sent"} {
		m := message.NewMessage(watermill.NewUUID(), []byte("order-7"))
		m.Metadata.Set("order_id", "7")
		check(out.Publish("orders."+event, m))
	}
	broker.print(3)

	stop()
	running.Wait()         // first the relay,
	check(broker.Close())  // then what it sends to,
	fmt.Println("stopped") // and db in the end
	// Output:
	// orders.placed: order-7
	// orders.paid: order-7
	// orders.sent: order-7
	// stopped
}

// For a cron job: relay what is there, and return.
func ExampleRelay_RelayBatch() {
	db, out, done := exampleOutbox(outbox.Config{Standalone: true})
	defer done()
	check(out.Publish("orders",
		message.NewMessage("order-1", []byte("one")), message.NewMessage("order-2", []byte("two"))))

	relay, err := outbox.NewRelay(db, newPrinter(), outbox.RelayConfig{})
	check(err)
	sent, err := relay.RelayBatch(context.Background())
	check(err)
	fmt.Println("sent:", sent)
	// Output: sent: 2
}

// picky is a broker that cannot take everything, and knows which errors will not go away.
type picky struct{ message.Publisher }

var errTooLong = errors.New("longer than 8 bytes")

func (p picky) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if len(m.Payload) > 8 {
			return outbox.Permanent(errTooLong)
		}
		if err := p.Publisher.Publish(topic, m); err != nil {
			return err
		}
	}
	return nil
}

// A permanent error counts as an attempt at once; the other messages go on.
func ExamplePermanent() {
	db, out, done := exampleOutbox(outbox.Config{Standalone: true})
	defer done()
	broker, parked := newPrinter(), make(chan string, 1)
	tell := func(_ context.Context, e outbox.Event) {
		parked <- fmt.Sprintf("%s to %s is parked: %v", e.UUID, e.Topic, e.Err)
	}
	relay, err := outbox.NewRelay(db, picky{broker}, outbox.RelayConfig{
		MaxAttempts: 1, Observers: []outbox.Observer{outbox.On(tell, outbox.KindParked)},
	})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- relay.Run(ctx) }()

	check(out.Publish("notes",
		message.NewMessage("note-1", []byte("much too long")), message.NewMessage("note-2", []byte("short"))))
	broker.print(1)
	fmt.Println(<-parked)
	stop()
	check(<-stopped)
	// Output:
	// notes: short
	// note-1 to notes is parked: longer than 8 bytes
}

// What a handler returns is stored instead of published. Behind middleware.Inbox rather give
// the Publisher to Inbox.Outbox, which stores it in the handler's transaction.
func ExamplePublisher_Decorate() {
	db, out, done := exampleOutbox(outbox.Config{})
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	store, err := inbox.NewStore(db, inbox.Config{})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router) // a redelivery returns the same messages again
	router.AddPublisherDecorators(out.Decorate)
	router.AddHandler("billing", "orders", broker, "invoices", broker,
		func(msg *message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
		})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	check(broker.Publish("orders", message.NewMessage("order-1", []byte("10 EUR"))))
	check(router.Close())
	check(<-stopped)
	check(store.Close(context.Background()))
	backlog, err := out.Backlog(context.Background(), outbox.BacklogOptions{})
	check(err)
	fmt.Println("to be sent:", backlog.Unsent())
	// Output: to be sent: 1
}

package admin_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
)

// exampleRouter runs handler behind the inbox on the topic "payments". Its publisher
// returns when the message was acked.
func exampleRouter(store *inbox.Store, handler message.NoPublishHandlerFunc) (message.Publisher, func()) {
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("accounts", "payments", channel, handler)
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	return channel, func() {
		check(router.Close())
		check(<-stopped)
	}
}

// A message with the UUID of another one, but a payload of its own, is parked: stored
// whole, and acked. Parked lists such messages with the reason.
func ExampleAdmin_Find() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()
	publisher, stop := exampleRouter(store, func(msg *message.Message) error {
		fmt.Printf("handled %s\n", msg.Payload)
		_, err := inbox.Tx(msg.Context())
		return err
	})
	defer stop()

	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("10 EUR"))))
	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("99 EUR"))))

	parked, err := admin.New(store).Find(ctx, admin.Filter{Status: admin.Parked}, 0, 100)
	check(err)
	for _, m := range parked {
		fmt.Printf("parked %s of consumer %s: %s\n", m.Payload, m.Consumer, m.Reason)
	}
	// Output:
	// handled 10 EUR
	// parked 99 EUR of consumer accounts: same key as message payment-1, other payload
}

// Retry sends a parked message back to its topic, where it is handled as the message of
// its own that it is.
func ExampleAdmin_Retry() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()
	publisher, stop := exampleRouter(store, func(msg *message.Message) error {
		fmt.Printf("handled %s\n", msg.Payload)
		_, err := inbox.Tx(msg.Context())
		return err
	})
	defer stop()

	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("10 EUR"))))
	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("99 EUR"))))
	parked, err := admin.New(store).Find(ctx, admin.Filter{Status: admin.Parked}, 0, 1)
	check(err)

	by := admin.Operator{Name: "ann", Reason: "the shop numbered two payments alike"}
	check(admin.New(store).Retry(ctx, parked[0].ID, by, publisher))

	parked, err = admin.New(store).Find(ctx, admin.Filter{Status: admin.Parked}, 0, 1)
	check(err)
	fmt.Println("still parked:", len(parked))
	// Output:
	// handled 10 EUR
	// handled 99 EUR
	// still parked: 0
}

// Discard closes a parked message without handling it. Who did so, and why, is kept.
func ExampleAdmin_Discard() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()
	publisher, stop := exampleRouter(store, func(msg *message.Message) error {
		fmt.Printf("handled %s\n", msg.Payload)
		_, err := inbox.Tx(msg.Context())
		return err
	})
	defer stop()

	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("10 EUR"))))
	check(publisher.Publish("payments", message.NewMessage("payment-1", []byte("99 EUR"))))
	parked, err := admin.New(store).Find(ctx, admin.Filter{Status: admin.Parked}, 0, 1)
	check(err)

	by := admin.Operator{Name: "ann", Reason: "a test of the shop's"}
	check(admin.New(store).Discard(ctx, parked[0].ID, by))

	story, err := admin.New(store).Story(ctx, parked[0].MessageID)
	check(err)
	for _, a := range story.Audit {
		fmt.Printf("%s: %s, because %s\n", a.Action, a.Operator.Name, a.Operator.Reason)
	}
	// Output:
	// handled 10 EUR
	// discard: ann, because a test of the shop's
}

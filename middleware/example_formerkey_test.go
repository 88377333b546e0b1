package middleware_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

// The last release knew payments by their UUID. The next one knows them by their id, and handles none again
// that the last one has handled.
func ExampleInbox_formerKey() {
	_, store, done := exampleStore()
	defer done()
	payment := func(uuid, id string) *message.Message {
		msg := message.NewMessage(uuid, nil)
		msg.Metadata.Set("payment_id", id)
		return msg
	}
	_, err := millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			fmt.Println("the last release handled", msg.UUID)
			return nil, nil
		})(payment("a", "1"))
	check(err)

	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	millrace.Inbox{
		Store: store, Consumer: "billing",
		Key:     inbox.ByMetadata("payment_id"), // was: inbox.ByUUID(), in epoch 0
		Options: inbox.Options{Epoch: 1, FormerKey: inbox.ByUUID()},
	}.AddTo(router)
	router.AddConsumerHandler("billing", "payments", broker, func(msg *message.Message) error {
		fmt.Println("the next one handled", msg.UUID)
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	check(broker.Publish("payments", payment("a", "1"), payment("b", "2"), payment("c", "2")))
	check(router.Close())
	check(<-stopped)
	// Output:
	// the last release handled a
	// the next one handled b
}

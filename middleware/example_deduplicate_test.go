package middleware_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A handler that sends mail has no transaction. Its message is remembered once the handler
// succeeded, and not before: the failed run is repeated, the copy is not.
func ExampleDeduplicate() {
	claims := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{}) // or store.Leases(), or redisleases.New
	logger := watermill.NopLogger{}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)
	router.AddMiddleware(millrace.Deduplicate{Claims: claims}.Middleware)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	attempts := 0
	router.AddConsumerHandler("mailer", "orders", broker, func(msg *message.Message) error {
		if attempts++; attempts == 1 {
			return errors.New("the mail server does not answer") // gochannel delivers the message again
		}
		fmt.Printf("attempt %d: mail for order %s\n", attempts, msg.Payload)
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	for range 2 { // the second is a copy
		check(broker.Publish("orders", message.NewMessage("79a3b1a8-52a3-4ab4-a5f8-1a1e2ec4eb29", []byte("4711"))))
	}
	check(router.Close())
	check(<-stopped)
	// Output: attempt 2: mail for order 4711
}

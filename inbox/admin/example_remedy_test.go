package admin_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// What makes messages fail is found by the shape of the errors; when its reason is mended,
// the messages of a group are tried again, and the attempts start anew.
func ExampleAdmin_FailureGroups() {
	ctx := context.Background()
	_, store, done := exampleStore(inbox.Config{})
	defer done()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	sub, err := pubsub.Durable{Store: store, Consumer: "accounts"}.Decorate(broker)
	check(err)

	var mended atomic.Bool
	handled := make(chan string, 2)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("accounts", "payments", sub, func(msg *message.Message) error {
		if !mended.Load() {
			return inbox.Terminal(fmt.Errorf("account %s: %w", msg.Payload, errors.New("no currency")))
		}
		handled <- string(msg.Payload)
		return nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	<-router.Running()
	check(broker.Publish("payments", message.NewMessage("payment-1", []byte("4711"))))
	check(broker.Publish("payments", message.NewMessage("payment-2", []byte("0815"))))

	groups, err := admin.New(store).FailureGroups(ctx, admin.Filter{Consumer: "accounts"})
	check(err)
	for _, g := range groups {
		fmt.Printf("%d messages: %s\n", g.Messages, g.Shape)
	}
	backlog, err := admin.New(store).Backlog(ctx, admin.BacklogOptions{})
	check(err)
	fmt.Printf("%s: %v due, %v failed\n", backlog[0].Consumer, backlog[0].Due, backlog[0].FailedTerminal)

	mended.Store(true)
	by := admin.Operator{Name: "ann", Reason: "the accounts have their currency now"}
	n, err := admin.New(store).RetryAll(ctx, admin.Filter{ErrorGroup: groups[0].ErrorGroup}, by, broker, admin.Pace{PerSecond: 100})
	check(err)
	fmt.Println(n, "are tried again")
	for range 2 {
		select {
		case payload := <-handled:
			fmt.Println("handled", payload)
		case <-time.After(time.Minute):
			fmt.Println("nothing was handled")
		}
	}
	check(router.Close())
	check(<-stopped)
	// Unordered output:
	// 2 messages: account ?: no currency
	// accounts: 0 due, 2 failed
	// 2 are tried again
	// handled 4711
	// handled 0815
}

package shadow_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// A producer that sends an order again under another UUID: only the order's id shows it.
func Example() {
	logger := watermill.NopLogger{}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	check(err)

	watch, err := shadow.New(shadow.Config{Keys: []inbox.Key{inbox.ByMetadata("order_id")}})
	check(err)
	router.AddMiddleware(watch.Middleware)

	runs := 0
	router.AddConsumerHandler("billing", "orders", broker, func(*message.Message) error {
		runs++
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	for _, order := range []string{"7", "8", "8", "9"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte("order "+order))
		msg.Metadata.Set("order_id", order)
		check(broker.Publish("orders", msg))
	}
	check(router.Close())
	check(<-stopped)

	fmt.Println("handled", runs, "times")
	for _, k := range watch.Report().Consumers[0].Keys {
		fmt.Printf("%s: %d distinct, %d duplicates, %d missing\n", k.Key, k.Distinct, k.Duplicates, k.Missing)
	}
	// Output:
	// handled 4 times
	// uuid: 4 distinct, 0 duplicates, 0 missing
	// cloudevent: 0 distinct, 0 duplicates, 4 missing
	// payload: 3 distinct, 1 duplicates, 0 missing
	// metadata:"order_id": 3 distinct, 1 duplicates, 0 missing
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

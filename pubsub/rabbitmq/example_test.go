package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// TestExamples runs the examples that need a broker.
func TestExamples(t *testing.T) {
	uri(t)
	ExampleNewPublisher()
	ExampleNewSubscriber()
	ExampleDeclare()
	ExampleRequeue()
}

func exampleURI() string { return os.Getenv("MILLRACE_TEST_RABBITMQ") }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Each message of a call has its own verdict.
func ExampleNewPublisher() {
	topic := "example-" + watermill.NewShortUUID()
	broker := rabbitmq.NewQueueConfig(exampleURI(), rabbitmq.Queues{})
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	check(err)
	defer func() { check(publisher.Close()) }()

	err = publisher.Publish(topic,
		message.NewMessage(watermill.NewUUID(), []byte("one")),
		message.NewMessage(watermill.NewUUID(), []byte("two")),
	)
	var partial *outbox.PartialError
	if errors.As(err, &partial) {
		for _, err := range partial.Errors {
			fmt.Println(errors.Is(err, outbox.ErrPermanent), err) // true: there is no such queue
		}
	}
}

// Sixteen messages are handled at once, by a service that is told which of them may have
// come before.
func ExampleNewSubscriber() {
	topic := "example-" + watermill.NewShortUUID()
	broker := rabbitmq.NewQueueConfig(exampleURI(), rabbitmq.Queues{})
	broker.Queue.AutoDelete = true // so that the example leaves nothing behind
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	check(err)
	defer func() { check(publisher.Close()) }()
	subscriber, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 16})
	check(err)
	defer func() { check(subscriber.Close()) }()

	messages, err := subscriber.Subscribe(context.Background(), topic)
	check(err)
	check(publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte("order 7"))))
	msg := <-messages
	fmt.Println(string(msg.Payload), rabbitmq.Redelivered(msg)) // order 7 false
	msg.Ack()
}

// A deployment declares the queue of each group of consumers before anything is published.
func ExampleDeclare() {
	topic := "example-" + watermill.NewShortUUID()
	broker := rabbitmq.NewPubSubConfig(exampleURI(), "billing", rabbitmq.Queues{Quorum: true})
	broker.Exchange.AutoDeleted = true
	broker.Queue.Arguments[amqp091.QueueTTLArg] = 1000 // so that the example leaves nothing behind
	check(rabbitmq.Declare(broker, topic))

	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	check(err)
	defer func() { check(publisher.Close()) }()
	check(publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte("placed"))))
}

// What a service gave up is sent back when its handler is fixed: first to see how much it is.
func ExampleRequeue() {
	topic := "example-" + watermill.NewShortUUID()
	broker := rabbitmq.NewPubSubConfig(exampleURI(), "billing", rabbitmq.Queues{DeadLetters: true})
	check(rabbitmq.Declare(broker, topic))
	defer forget(topic, topic+"_billing", topic+"_billing.dead") // so that the example leaves nothing behind
	ctx := context.Background()

	dead := broker.Queue.GenerateName(topic) + rabbitmq.DeadLetterSuffix
	config := rabbitmq.RequeueConfig{Replay: "the accounts are there now", DryRun: true}
	letters, err := rabbitmq.Requeue(ctx, broker, dead, config)
	check(err)
	fmt.Println(letters.Sent, "would be sent")

	config.DryRun, config.PerSecond = false, 100
	config.Payload = func(letter *message.Message) (message.Payload, error) {
		return bytes.ReplaceAll(letter.Payload, []byte("EURO"), []byte("EUR")), nil
	}
	letters, err = rabbitmq.Requeue(ctx, broker, dead, config)
	check(err) // it names what stayed, and why: call it again for the rest
	fmt.Println(letters.Sent, "sent")
}

// forget deletes queues and exchanges.
func forget(names ...string) {
	conn, err := amqp091.Dial(exampleURI())
	check(err)
	ch, err := conn.Channel()
	check(err)
	for _, name := range names {
		_, err := ch.QueueDelete(name, false, false, false)
		check(err)
		check(ch.ExchangeDelete(name, false, false))
	}
	check(conn.Close())
}

// The queue counts deliveries in a number, and keeps the story of a dead letter in a table.
func ExampleMarshaler() {
	var marshaler amqp.Marshaler = rabbitmq.Marshaler{}
	msg, err := marshaler.Unmarshal(amqp091.Delivery{
		Headers:     amqp091.Table{"_watermill_message_uuid": "an-id", "x-delivery-count": int64(2), "tenant": "blue"},
		Redelivered: true,
	})
	check(err)
	fmt.Println(msg.UUID, rabbitmq.Redelivered(msg), msg.Metadata[rabbitmq.DeliveryCountKey])

	again, err := marshaler.Marshal(msg) // nothing of the delivery travels on
	check(err)
	fmt.Println(again.MessageId, again.Headers)
	// Output:
	// an-id true 2
	// an-id map[_watermill_message_uuid:an-id tenant:blue]
}

// An inbox looks a message up that may have come before, ahead of claiming it.
func ExampleRedelivered() {
	msg := message.NewMessage("an-id", nil)
	fmt.Println(rabbitmq.Redelivered(msg))
	msg.Metadata.Set(rabbitmq.RedeliveredKey, "true")
	fmt.Println(rabbitmq.Redelivered(msg))
	// Output:
	// false
	// true
}

// The publishers and subscribers of a cluster connect to whichever node answers.
func ExampleNodes() {
	config := rabbitmq.NewQueueConfig("amqp://user:password@node1/", rabbitmq.Queues{Quorum: true})
	config.Connection.AmqpConfig = &amqp091.Config{
		Dial:      rabbitmq.Nodes("node1:5672", "node2:5672", "node3:5672"),
		Heartbeat: 4 * time.Second,
	}
	fmt.Println(config.Publish.ConfirmDelivery)
	// Output: true
}

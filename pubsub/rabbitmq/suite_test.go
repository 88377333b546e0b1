package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	_ "github.com/millrace-go/millrace/tests/suite" // waits
)

// Watermill's own suite: as queues, and as events with groups of consumers.
func TestPubSubSuite(t *testing.T) {
	features := tests.Features{
		GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true, ForceShort: true,
	}
	grouped := features
	grouped.ConsumerGroups = true
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		queue := func(t *testing.T) (message.Publisher, message.Subscriber) { return suitePair(t, "", q) }
		inGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return suitePair(t, group, q)
		}
		events := func(t *testing.T) (message.Publisher, message.Subscriber) { return inGroup(t, "test") }
		t.Run("queue", func(t *testing.T) { tests.TestPubSub(t, features, queue, nil) })
		t.Run("events", func(t *testing.T) { tests.TestPubSub(t, grouped, events, inGroup) })
	})
}

func suitePair(t *testing.T, group string, q rabbitmq.Queues) (message.Publisher, message.Subscriber) {
	t.Helper()
	broker := rabbitmq.NewQueueConfig(uri(t), q)
	if group != "" {
		broker = rabbitmq.NewPubSubConfig(uri(t), group, q)
	}
	broker.Queue.Arguments["x-expires"] = 600_000 // the suite leaves its queues behind
	broker.Exchange.AutoDeleted = true
	// The suite closes subscribers whose messages it never settles.
	config := rabbitmq.SubscriberConfig{CloseTimeout: 200 * time.Millisecond}
	return publisher(t, broker, rabbitmq.PublisherConfig{}), subscriber(t, broker, config)
}

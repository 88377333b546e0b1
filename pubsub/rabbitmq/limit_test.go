package rabbitmq_test

import (
	"context"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// A message whose handler always fails is given up after the limit, and those behind it are
// handled; on a broker that counts nothing but failures as well as on one that counts all.
func TestAPoisonMessageIsDeadLetteredAfterTheLimit(t *testing.T) {
	const limit = 4
	uri := uri(t)
	a := newAdmin(t, uri)
	topic := a.topic()
	broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true, DeadLetters: true, DeliveryLimit: limit})
	require.NoError(t, rabbitmq.Declare(broker, topic))
	messages := newMessages(3)
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, messages...))
	out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	for range limit + 1 {
		poison := receive(t, out)
		require.Equal(t, messages[0].UUID, poison.UUID)
		poison.Nack()
	}
	for _, want := range messages[1:] {
		msg := receive(t, out)
		require.Equal(t, want.UUID, msg.UUID)
		msg.Ack()
	}
	rig.Eventually(t, "it is a dead letter", func() bool { return a.ready(topic+rabbitmq.DeadLetterSuffix) == 1 })
}

// What a subscriber had and never handed out is no failure of the messages.
func TestRestartsDeadLetterNothing(t *testing.T) {
	for name, limits := range map[string]bool{"the queue's limit": true, "the server's limit, if it has one": false} {
		t.Run(name, func(t *testing.T) {
			uri := uri(t)
			a := newAdmin(t, uri)
			topic := a.topic()
			broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true, DeadLetters: true})
			if !limits {
				delete(broker.Queue.Arguments, "x-delivery-limit")
			}
			broker.Consume.Qos.PrefetchCount = 5
			require.NoError(t, rabbitmq.Declare(broker, topic))
			messages := newMessages(5)
			require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, messages...))
			for range 20 {
				s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
				_, err := s.Subscribe(t.Context(), topic)
				require.NoError(t, err)
				rig.Eventually(t, "some are delivered", func() bool { return a.ready(topic) < len(messages) })
				require.NoError(t, s.Close())
				rig.Eventually(t, "they are back", func() bool { return a.ready(topic) == len(messages) })
			}
			require.Equal(t, 0, a.ready(topic+rabbitmq.DeadLetterSuffix))
			counted := int64(0)
			for _, d := range a.drain(topic, len(messages)) {
				if n, is := d.Headers["x-delivery-count"].(int64); is {
					counted += n
				}
			}
			if countsReturns(a) {
				assert.EqualValues(t, 20, counted, "each time of no more than it may hand out")
			} else {
				assert.Zero(t, counted)
			}
		})
	}
}

// countsReturns reports whether a quorum queue counts what was never handled.
func countsReturns(a *admin) bool {
	version, _ := a.conn.Properties["version"].(string)
	return version < "4.3"
}

// A handler that is cancelled, as the service ends, has not failed.
func TestACancelledHandlerDeadLettersNothing(t *testing.T) {
	for name, q := range map[string]rabbitmq.Queues{
		"classic": {DeadLetters: true}, "quorum": {DeadLetters: true, Quorum: true},
	} {
		t.Run(name, func(t *testing.T) {
			uri := uri(t)
			a := newAdmin(t, uri)
			topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri, q)
			ctx, cancel := context.WithCancel(t.Context())
			out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(ctx, topic)
			require.NoError(t, err)
			require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
			msg := receive(t, out)
			cancel()
			<-msg.Context().Done()
			msg.Nack()
			_, open := <-out
			require.False(t, open)
			rig.Eventually(t, "it is back", func() bool { return a.ready(topic) == 1 })
			require.Equal(t, 0, a.ready(topic+rabbitmq.DeadLetterSuffix))
			if d := a.drain(topic, 1)[0]; !countsReturns(a) {
				require.NotContains(t, d.Headers, "x-delivery-count")
			}
		})
	}
}

// What a broker writes on a message stays on this side, and what a user does travels on.
func TestTheBrokersHeadersDoNotTravelOn(t *testing.T) {
	uri := uri(t)
	a := newAdmin(t, uri)
	topic, further := a.topic(), a.queue(nil)
	broker := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true, DeadLetters: true, DeliveryLimit: 1})
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	msg := newMessages(1)[0]
	msg.Metadata.Set("x-custom", "a user's")
	require.NoError(t, p.Publish(topic, msg))
	for range 2 {
		receive(t, out).Nack()
	}
	letters := rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true})
	dead, err := subscriber(t, letters, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic+rabbitmq.DeadLetterSuffix)
	require.NoError(t, err)
	receive(t, dead).Nack()
	letter := receive(t, dead)
	for name := range letter.Metadata {
		require.NotRegexp(t, "^x-[^c]", name)
	}
	require.Equal(t, topic, letter.Metadata[rabbitmq.HeaderPrefix+"x-first-death-queue"])
	require.NotEmpty(t, letter.Metadata[rabbitmq.DeliveryCountKey]) // 4.3 goes on from the other queue's
	require.NoError(t, p.Publish(further, letter))
	letter.Ack()
	require.Equal(t, amqp091.Table{"_watermill_message_uuid": msg.UUID, "x-custom": "a user's"}, a.drain(further, 1)[0].Headers)
}

package rabbitmq_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// Both ways, through the broker, with headers of a foreign producer between.
func TestMessagesOfWatermillAMQPAreUnderstoodAndOursByIt(t *testing.T) {
	a := newAdmin(t, uri(t))
	ours, theirs := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), amqp.NewDurableQueueConfig(uri(t))
	msg := message.NewMessage("an id of é\xff", []byte{0, 0xff, 0})
	msg.Metadata = message.Metadata{"": "", "key": "value", "binary": "\x00\xff", "long": fmt.Sprintf("%9999d", 1)}
	theirPublisher, err := amqp.NewPublisher(theirs, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, theirPublisher.Close()) }()
	theirSubscriber, err := amqp.NewSubscriber(theirs, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, theirSubscriber.Close()) }()

	topic := a.queue(nil)
	out, err := subscriber(t, ours, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, theirPublisher.Publish(topic, msg))
	got := receive(t, out)
	require.True(t, got.Equals(msg), "%#v", got)
	got.Ack()

	require.NoError(t, a.channel().PublishWithContext(t.Context(), "", topic, true, false, amqp091.Publishing{
		MessageId: "foreign", Headers: amqp091.Table{"n": int64(1), "t": amqp091.Table{"a": true}}, Body: []byte("x"),
	}))
	got = receive(t, out)
	require.Equal(t, "foreign", got.UUID)
	require.Equal(t, message.Metadata{"n": "1", "t": `{"a":true}`, rabbitmq.MessageIDKey: "foreign"}, got.Metadata)
	got.Ack()

	topic = a.queue(nil)
	out, err = theirSubscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, ours, rabbitmq.PublisherConfig{}).Publish(topic, msg))
	got = receive(t, out)
	require.True(t, got.Equals(msg), "%#v", got)
	got.Ack()
}

// A quorum queue counts deliveries in a header that is a number, which watermill-amqp's
// marshaler refuses: one nack, and its handler never sees the message again.
func TestAQuorumQueueDeliversAgainAfterANack(t *testing.T) {
	a := newAdmin(t, uri(t))
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{Quorum: true})
	p := publisher(t, broker, rabbitmq.PublisherConfig{})

	t.Run("ours", func(t *testing.T) {
		topic := a.topic()
		out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
		require.NoError(t, err)
		require.NoError(t, p.Publish(topic, newMessages(1)...))
		receive(t, out).Nack()
		again := receive(t, out)
		require.Equal(t, "1", again.Metadata[rabbitmq.DeliveryCountKey])
		require.True(t, rabbitmq.Redelivered(again))
		again.Ack()
	})
	t.Run("watermill-amqp's", func(t *testing.T) {
		topic, theirs := a.topic(), broker
		refusing := &counting{}
		theirs.Marshaler = refusing
		s, err := amqp.NewSubscriber(theirs, watermill.NopLogger{})
		require.NoError(t, err)
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		require.NoError(t, p.Publish(topic, newMessages(1)...))
		receive(t, out).Nack()
		rig.Eventually(t, "it is refused again and again", func() bool { return refusing.refused.Load() > 20 })
		select {
		case <-out:
			require.Fail(t, "watermill-amqp has learned it: say so in the documentation")
		default:
		}
		require.NoError(t, s.Close())
	})
}

type counting struct {
	amqp.DefaultMarshaler
	refused atomic.Int64
}

func (c *counting) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := c.DefaultMarshaler.Unmarshal(d)
	if err != nil {
		c.refused.Add(1)
	}
	return msg, err
}

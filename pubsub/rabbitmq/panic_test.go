package rabbitmq_test

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// stumbling panics with the first deliveries.
type stumbling struct {
	rabbitmq.Marshaler
	left *atomic.Int32
}

func (s stumbling) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if s.left.Add(-1) >= 0 {
		panic("a marshaler")
	}
	return s.Marshaler.Unmarshal(d)
}

// hoarse is a logger that panics, whatever it is to say.
type hoarse struct{}

func (hoarse) Error(string, error, watermill.LogFields)         { panic("a logger") }
func (hoarse) Info(string, watermill.LogFields)                 { panic("a logger") }
func (hoarse) Debug(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) Trace(string, watermill.LogFields)                { panic("a logger") }
func (hoarse) With(watermill.LogFields) watermill.LoggerAdapter { panic("a logger") }

// TestAMarshalerAndALoggerThatPanic lose no message: it is rejected, told of, and comes again.
func TestAMarshalerAndALoggerThatPanic(t *testing.T) {
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		a := newAdmin(t, uri(t))
		topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), q)
		var left atomic.Int32
		left.Store(2)
		broker.Marshaler = stumbling{left: &left}
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: hoarse{}})
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{Logger: hoarse{}}).Publish(topic, newMessages(2)...))
		for range 2 {
			receive(t, out).Ack()
		}
		require.NoError(t, s.Close())
		require.Equal(t, 0, a.ready(topic), "all are acked")
	})
}

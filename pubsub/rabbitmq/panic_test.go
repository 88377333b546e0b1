package rabbitmq_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
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

// hoarse is a logger that trips, whatever it is to say.
type hoarse struct{ trip func() }

func (h hoarse) Error(string, error, watermill.LogFields)         { h.trip() }
func (h hoarse) Info(string, watermill.LogFields)                 { h.trip() }
func (h hoarse) Debug(string, watermill.LogFields)                { h.trip() }
func (h hoarse) Trace(string, watermill.LogFields)                { h.trip() }
func (h hoarse) With(watermill.LogFields) watermill.LoggerAdapter { h.trip(); return h }

// TestAMarshalerAndALoggerThatPanic lose no message: it is rejected, told of, and comes again.
func TestAMarshalerAndALoggerThatPanic(t *testing.T) {
	t.Parallel()
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		for how, trip := range trips {
			t.Run(how, func(t *testing.T) {
				a := newAdmin(t, uri(t))
				topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), q)
				var left atomic.Int32
				left.Store(2)
				broker.Marshaler = stumbling{left: &left}
				s := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: hoarse{trip}})
				out, err := s.Subscribe(t.Context(), topic)
				require.NoError(t, err)
				require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{Logger: hoarse{trip}}).Publish(topic, newMessages(2)...))
				for range 2 {
					receive(t, out).Ack()
				}
				require.NoError(t, s.Close())
				require.Equal(t, 0, a.ready(topic), "all are acked")
			})
		}
	})
}

// TestALoggerThatTripsKeepsNoConnectionLost: whoever makes it again tells of it.
func TestALoggerThatTripsKeepsNoConnectionLost(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
		wire, through := behind(t)
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: hoarse{trip}})
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		p := publisher(t, broker, rabbitmq.PublisherConfig{Logger: hoarse{trip}})
		require.NoError(t, p.Publish(topic, newMessages(1)...))
		unacked := receive(t, out)
		wire.Cut()
		unacked.Ack() // too late
		wire.Mend()
		receive(t, out).Ack()
		rig.Eventually(t, "the publisher has a connection", func() bool { return p.Publish(topic, newMessages(1)...) == nil })
		receive(t, out).Ack()
		rig.Eventually(t, "each loss and each connection is told", func() bool { return taken.Load() >= 4 })
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
	})
}

// brittle is a connection whose writes trip from the given moment on.
type brittle struct {
	net.Conn
	armed *atomic.Bool
	trip  func()
}

func (c brittle) Write(b []byte) (int, error) {
	if c.armed.Swap(false) {
		c.trip()
	}
	return c.Conn.Write(b)
}

// TestAConnectionThatTrips is one that was lost.
func TestAConnectionThatTrips(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
		var armed atomic.Bool
		broker.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqp091.DefaultDial(rig.Patience)(network, address)
			return brittle{conn, &armed, trip}, err
		}}
		p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: time.Hour})
		require.NoError(t, p.Publish(topic, newMessages(1)...))
		armed.Store(true)
		endsInTime(t, func() error {
			err := p.Publish(topic, newMessages(1)...)
			assert.Error(t, err)
			return err
		})
		rig.Eventually(t, "the publisher has a connection", func() bool { return p.Publish(topic, newMessages(1)...) == nil })
		assert.EqualValues(t, 1, taken.Load())
		require.NoError(t, p.Close())
	})
}

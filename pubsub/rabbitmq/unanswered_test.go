package rabbitmq_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/remaining"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// During an alarm RabbitMQ reads nothing from a connection that has published, and sends heartbeats.
func TestRequeueEndsWithItsContextThoughTheNetworkIsSilent(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t, rabbitmq.Queues{})
	g.bury(newMessages(2)...)
	wire, through := behind(t)
	silent := g.broker
	silent.Connection.AmqpURI = through
	silent.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 24 * time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	endsInTime(t, func() error {
		_, err := rabbitmq.Requeue(ctx, silent, g.dead, rabbitmq.RequeueConfig{Wanted: func(*message.Message) bool {
			wire.Freeze()
			cancel()
			return true
		}})
		assert.Error(t, err)
		return err
	})
}

// watching notes that it marshals a message.
type watching struct {
	rabbitmq.Marshaler
	msg *message.Message
	did *atomic.Bool
}

func (m watching) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if msg == m.msg {
		m.did.Store(true)
	}
	return m.Marshaler.Marshal(msg)
}

// Its caller may change the messages.
func TestNothingIsMarshalledOncePublishHasReturned(t *testing.T) {
	t.Parallel()
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
	msg := newMessages(1)[0]
	var did atomic.Bool
	broker.Marshaler = watching{msg: msg, did: &did}
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: 100 * time.Millisecond})
	wire.Freeze()
	require.ErrorIs(t, p.Publish(topic, msg), rabbitmq.ErrUnconfirmed, "it waits for a channel")
	wire.Thaw()
	rig.Eventually(t, "it publishes in time", func() bool { return p.Publish(topic, newMessages(1)...) == nil })
	require.NoError(t, p.Close())
	assert.False(t, did.Load())
}

// unbuilt is a topology that fails while it is told to.
type unbuilt struct {
	amqp.DefaultTopologyBuilder
	fails *atomic.Bool
}

func (b unbuilt) BuildTopology(
	ch *amqp091.Channel, queue, exchange string, c amqp.Config, logger watermill.LoggerAdapter,
) error {
	if b.fails.Load() {
		return errors.New("no topology")
	}
	return b.DefaultTopologyBuilder.BuildTopology(ch, queue, exchange, c, logger)
}

// A quorum queue without a leader counts neither messages nor consumers.
func TestAQueueThatCountsNoConsumerIsNotEmpty(t *testing.T) {
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
	var fails atomic.Bool
	broker.TopologyBuilder = unbuilt{fails: &fails}
	s := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: watermill.NopLogger{}})
	ctx, asked := remaining.Ask(t.Context())
	_, err := s.Subscribe(ctx, topic)
	require.NoError(t, err)
	left, err := asked.Count()
	require.NoError(t, err)
	require.Zero(t, left)
	fails.Store(true)
	wire.Cut()
	wire.Mend()
	rig.Eventually(t, "there is another connection", func() bool {
		_, err = asked.Count()
		return !errors.Is(err, rabbitmq.ErrNotConnected)
	})
	require.ErrorContains(t, err, "names no consumer")
	fails.Store(false)
	rig.Eventually(t, "it consumes again", func() bool {
		left, err = asked.Count()
		return err == nil
	})
	require.Zero(t, left)
}

// Each instance of a service may have a queue of its own, with a name that is made up.
func TestTheNameOfAQueueIsAskedForOnce(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.topic()
	broker := rabbitmq.NewPubSubConfig(uri(t), "group", rabbitmq.Queues{})
	n := 0
	broker.Queue.GenerateName = func(topic string) string {
		n++
		return topic + "_" + strconv.Itoa(n)
	}
	broker.Queue.Durable, broker.Queue.AutoDelete = false, true
	messages, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
	receive(t, messages).Ack()
	assert.Equal(t, 1, n)
}

// closing tells when a connection is closed.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c closing) Close() error {
	defer func() { c.closed <- struct{}{} }()
	return c.Conn.Close()
}

func TestDeclareEndsItsConnectionThoughAFunctionPanics(t *testing.T) {
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	broker.Queue.GenerateName = func(string) string { panic("no name") }
	closed := make(chan struct{}, 10)
	broker.Connection.AmqpConfig = &amqp091.Config{Dial: dialing(new(atomic.Int64), func(conn net.Conn) net.Conn {
		return closing{conn, closed}
	})}
	require.PanicsWithValue(t, "no name", func() { _ = rabbitmq.Declare(broker, "topic") })
	rig.Within(t, closed, "the end of the connection")
}

package rabbitmq_test

import (
	"context"
	"errors"
	"math"
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

func TestSubscriberHandsOutSeveralAtOnce(t *testing.T) {
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		a := newAdmin(t, uri(t))
		topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), q)
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{InFlight: 5})
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(8)...))
		held := make([]*message.Message, 5)
		for i := range held {
			held[i] = receive(t, out)
		}
		hearsNothing(t, out)
		for i := range 3 {
			held[i].Ack()
			held = append(held, receive(t, out))
		}
		for _, msg := range held[3:] {
			msg.Ack()
		}
		require.NoError(t, s.Close())
		require.Equal(t, 0, a.ready(topic), "all are acked")
	})
}

// hearsNothing gives a message that should not come a moment to come.
func hearsNothing(t *testing.T, from <-chan *message.Message) {
	t.Helper()
	select {
	case msg := <-from:
		require.Fail(t, "one too many", "%s", msg.Payload)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestOneInFlightKeepsTheOrderOverANack(t *testing.T) {
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		a := newAdmin(t, uri(t))
		topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), q)
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
		require.NoError(t, s.SubscribeInitialize(topic))
		messages := newMessages(20)
		require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, messages...))
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		for i, want := range messages {
			msg := receive(t, out)
			require.Equal(t, want.UUID, msg.UUID)
			require.False(t, rabbitmq.Redelivered(msg))
			if i%5 == 0 {
				msg.Nack()
				msg = receive(t, out)
				require.Equal(t, want.UUID, msg.UUID)
				require.True(t, rabbitmq.Redelivered(msg))
			}
			msg.Ack()
		}
	})
}

func TestSubscriberGoesOnAfterAnOutage(t *testing.T) {
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, direct := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	s := subscriber(t, rabbitmq.NewQueueConfig(through, rabbitmq.Queues{}), rabbitmq.SubscriberConfig{InFlight: 2})
	out, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	p := publisher(t, direct, rabbitmq.PublisherConfig{})
	messages := newMessages(3)
	require.NoError(t, p.Publish(topic, messages...))
	held := []*message.Message{receive(t, out), receive(t, out)}
	wire.Cut()
	rig.Eventually(t, "RabbitMQ has them back", func() bool { return a.ready(topic) == 3 })
	_, err = s.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, rabbitmq.ErrNotConnected)
	require.ErrorIs(t, s.SubscribeInitialize(topic), rabbitmq.ErrNotConnected)
	wire.Mend()
	for _, msg := range held {
		require.NoError(t, msg.Context().Err())
	}
	held[0].Ack() // too late, RabbitMQ gave it back to the queue
	first := receive(t, out)
	hearsNothing(t, out) // the other one is in flight still
	held[1].Ack()
	for _, msg := range []*message.Message{first, receive(t, out)} {
		require.True(t, rabbitmq.Redelivered(msg))
		msg.Ack()
	}
	receive(t, out).Ack()
	rig.Eventually(t, "all are acked", func() bool { return a.ready(topic) == 0 })
}

func TestSubscriberGoesOnWhenItsQueueWasDeleted(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	heard := make(diary, 1000)
	out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: heard}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	_, err = a.channel().QueueDelete(topic, false, false, false)
	require.NoError(t, err)
	heard.until(t, "RabbitMQ cancelled a subscription, subscribing again: its queue was deleted")
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	msg := newMessages(1)[0]
	rig.Eventually(t, "the queue is back", func() bool { return p.Publish(topic, msg) == nil })
	got := receive(t, out)
	require.Equal(t, msg.UUID, got.UUID, "watermill-amqp hands out an empty message")
	got.Ack()
}

func TestWhyTheChannelOfASubscriptionEndedIsLogged(t *testing.T) {
	t.Parallel()
	heard, wire := make(diary, 1000), make(chan net.Conn, 1)
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	broker.Connection.AmqpConfig = &amqp091.Config{Dial: dialing(new(atomic.Int64), func(conn net.Conn) net.Conn { wire <- conn; return conn })}
	topic := newAdmin(t, uri(t)).topic()
	out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: heard}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	(&frameWriter{conn: <-wire, channel: 1}).ack(999, false)
	heard.until(t, "RabbitMQ closed the channel of a subscription, subscribing again: Exception (406)")
	msg := newMessages(1)[0]
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{Logger: heard}).Publish(topic, msg))
	got := receive(t, out)
	require.Equal(t, msg.UUID, got.UUID)
	got.Ack()
}

func TestAnEndingSubscriptionWaitsForItsMessages(t *testing.T) {
	for name, end := range map[string]func(s *rabbitmq.Subscriber, cancel func()) error{
		"closed":    func(s *rabbitmq.Subscriber, _ func()) error { return s.Close() },
		"cancelled": func(_ *rabbitmq.Subscriber, cancel func()) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdmin(t, uri(t))
			topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
			s := subscriber(t, broker, rabbitmq.SubscriberConfig{InFlight: 10, CloseTimeout: math.MaxInt64})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out, err := s.Subscribe(ctx, topic)
			require.NoError(t, err)
			p := publisher(t, broker, rabbitmq.PublisherConfig{})
			require.NoError(t, p.Publish(topic, newMessages(2)...))
			first, second := receive(t, out), receive(t, out)
			other, err := subscriber(t, broker, rabbitmq.SubscriberConfig{InFlight: 10}).Subscribe(t.Context(), topic)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- end(s, cancel) }()
			<-first.Context().Done()
			hearsNothing(t, other) // nobody else gets them meanwhile
			require.NoError(t, p.Publish(topic, newMessages(6)...))
			for range 6 { // and nothing new comes here
				receive(t, other).Ack()
			}
			first.Ack()
			second.Nack()
			_, open := <-out
			require.False(t, open)
			require.NoError(t, <-ended)
			again := receive(t, other)
			require.Equal(t, second.UUID, again.UUID)
			again.Ack()
			hearsNothing(t, other)
		})
	}
}

func TestAnEndingSubscriptionGivesUpInTheEnd(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	s := subscriber(t, broker, rabbitmq.SubscriberConfig{CloseTimeout: 50 * time.Millisecond})
	out, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
	stuck := receive(t, out)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, open := <-out
	require.False(t, open)
	require.Equal(t, 1, a.ready(topic))
	stuck.Ack()
	_, err = s.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, rabbitmq.ErrClosed)
	require.ErrorIs(t, s.SubscribeInitialize(topic), rabbitmq.ErrClosed)
}

// A router that closes lets its handler publish: the subscription has not ended yet.
func TestARouterClosesInOrder(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, produced := a.queue(nil), a.queue(nil)
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: rig.Patience}, watermill.NopLogger{})
	require.NoError(t, err)
	handling := make(chan struct{})
	router.AddHandler("handler", topic, subscriber(t, broker, rabbitmq.SubscriberConfig{}), produced,
		publisher(t, broker, rabbitmq.PublisherConfig{}), func(msg *message.Message) ([]*message.Message, error) {
			close(handling)
			<-msg.Context().Done() // the router closes
			return newMessages(1), nil
		})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
	<-handling
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
	require.Equal(t, 1, a.ready(produced))
	require.Equal(t, 0, a.ready(topic))
}

func TestAMessageThatCannotBeUnmarshalledIsKept(t *testing.T) {
	t.Parallel()
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	once := &refusing{}
	broker.Marshaler = once
	out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
	msg := receive(t, out)
	assert.True(t, rabbitmq.Redelivered(msg))
	msg.Ack()
}

// refusing refuses one message.
type refusing struct {
	rabbitmq.Marshaler
	once atomic.Bool
}

func (r *refusing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if !r.once.Swap(true) {
		return nil, errors.New("not now")
	}
	return r.Marshaler.Unmarshal(d)
}

func TestSubscriberRefusesWrongSettings(t *testing.T) {
	broker := rabbitmq.NewPubSubConfig("", "", rabbitmq.Queues{})
	_, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: -1, CloseTimeout: -1})
	for _, problem := range []string{"InFlight -1", "CloseTimeout", "AmqpURI", "Queue.GenerateName"} {
		require.ErrorContains(t, err, problem)
	}
	require.ErrorContains(t, rabbitmq.Declare(broker, "topic"), "Queue.GenerateName")
	broker = rabbitmq.NewQueueConfig("amqp://127.0.0.1:1/", rabbitmq.Queues{})
	_, err = rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{})
	require.ErrorContains(t, err, "connect to RabbitMQ")
	require.ErrorContains(t, rabbitmq.Declare(broker, "topic"), "connect to RabbitMQ")
}

package rabbitmq_test

import (
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// trips are how a function of the service ends without returning.
var trips = map[string]func(){
	"panics": func() { panic("a function of the service") },
	"exits":  runtime.Goexit,
}

func eachTrip(t *testing.T, body func(t *testing.T, trip func(), taken *atomic.Int64)) {
	t.Helper()
	for how, trip := range trips {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var taken atomic.Int64
			body(t, func() { taken.Add(1); trip() }, &taken)
		})
	}
}

// within does f in a goroutine that it may end.
func within(t *testing.T, f func()) (returned, panicked bool) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() != nil }()
		f()
		returned = true
	}()
	rig.Within(t, done, "it does not hang")
	return returned, panicked
}

// tripping is a marshaler that trips at a bad message, and loses another one.
type tripping struct {
	rabbitmq.Marshaler
	marshal, unmarshal func()
}

const bad, lost = "bad", "lost"

func (m tripping) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if string(msg.Payload) == bad && m.marshal != nil {
		m.marshal()
	}
	return m.Marshaler.Marshal(msg)
}

func (m tripping) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if string(d.Body) == bad && m.unmarshal != nil {
		m.unmarshal()
	}
	if string(d.Body) == lost && !d.Redelivered {
		return nil, nil //nolint:nilnil // that is what is wrong with it
	}
	return m.Marshaler.Unmarshal(d)
}

func TestRequeueGivesLettersBackWhereAFunctionPanics(t *testing.T) {
	for function, set := range map[string]func(trip func(*message.Message), c *rabbitmq.RequeueConfig, b *amqp.Config){
		"Wanted": func(trip func(*message.Message), c *rabbitmq.RequeueConfig, _ *amqp.Config) {
			c.Wanted = func(letter *message.Message) bool { trip(letter); return true }
		},
		"Payload": func(trip func(*message.Message), c *rabbitmq.RequeueConfig, _ *amqp.Config) {
			c.Payload = func(letter *message.Message) (message.Payload, error) { trip(letter); return letter.Payload, nil }
		},
		"To": func(trip func(*message.Message), c *rabbitmq.RequeueConfig, _ *amqp.Config) {
			c.To = func(letter *message.Message) (string, error) { trip(letter); return "", errors.New("nowhere") }
		},
		"Marshaler": func(trip func(*message.Message), _ *rabbitmq.RequeueConfig, b *amqp.Config) {
			b.Marshaler = tripping{unmarshal: func() { trip(message.NewMessage("", []byte(bad))) }}
		},
	} {
		t.Run(function, func(t *testing.T) {
			eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
				g := newGraveyard(t, rabbitmq.Queues{})
				g.bury(message.NewMessage("1", []byte("good")), message.NewMessage("2", []byte(bad)), message.NewMessage("3", []byte("good")))
				var config rabbitmq.RequeueConfig
				broker := g.broker
				set(func(letter *message.Message) {
					if string(letter.Payload) == bad {
						trip()
					}
				}, &config, &broker)
				returned, panicked := within(t, func() { _, _ = rabbitmq.Requeue(t.Context(), broker, g.dead, config) })
				assert.False(t, returned)
				assert.Equal(t, t.Name()[len(t.Name())-6:] == "panics", panicked, "the panic goes on")
				assert.EqualValues(t, 1, taken.Load())
				rig.Eventually(t, "all letters are back", func() bool { return g.ready(g.dead) == 3 })
				require.Equal(t, rabbitmq.Requeued{Sent: 3}, g.requeue(rabbitmq.RequeueConfig{}))
				assert.Equal(t, []string{"good", bad, "good"}, bodies(g.drain(g.queue, 3)))
			})
		})
	}
}

func TestASubscriberOutlivesItsMarshaler(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
		require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, message.NewMessage("1", []byte(bad)),
			message.NewMessage("2", []byte(lost)), message.NewMessage("3", []byte("good"))))
		broker.Marshaler = tripping{unmarshal: func() {
			if taken.Load() == 0 {
				trip()
			}
		}}
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{InFlight: 1})
		messages, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		var got []string
		for range 3 {
			msg := receive(t, messages)
			got = append(got, msg.UUID)
			msg.Ack()
		}
		assert.ElementsMatch(t, []string{"1", "2", "3"}, got)
		assert.EqualValues(t, 1, taken.Load())
		require.NoError(t, s.Close())
		assert.Equal(t, 0, a.ready(topic))
	})
}

func TestAPublisherOutlivesItsMarshaler(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
		broker.Publish.ChannelPoolSize = 1
		broker.Marshaler = tripping{marshal: trip}
		p := publisher(t, broker, rabbitmq.PublisherConfig{})
		for range 3 {
			var err error
			returned, panicked := within(t, func() { err = p.Publish(topic, message.NewMessage("1", []byte(bad))) })
			assert.True(t, returned != panicked)
			if returned {
				require.ErrorContains(t, err, "runtime.Goexit")
			}
		}
		assert.EqualValues(t, 3, taken.Load())
		require.NoError(t, p.Publish(topic, message.NewMessage("2", []byte("good"))))
		require.NoError(t, p.Close())
		assert.Equal(t, 1, a.ready(topic))
	})
}

// topology trips while it is armed.
type topology struct {
	amqp.DefaultTopologyBuilder
	trip func()
}

func (b *topology) BuildTopology(
	ch *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	b.trip()
	return b.DefaultTopologyBuilder.BuildTopology(ch, queue, exchange, config, logger)
}

func TestASubscriberOutlivesItsTopologyAndItsDial(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), taken *atomic.Int64) {
		wire, through := behind(t)
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
		var armed atomic.Int64
		once := func() {
			if armed.Add(-1) >= 0 {
				trip()
			}
		}
		broker.TopologyBuilder = &topology{trip: once}
		broker.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			if taken.Load() == 0 {
				once()
			}
			return amqp091.DefaultDial(rig.Patience)(network, address)
		}}
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{InFlight: 2})
		messages, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		armed.Store(2) // the next dial, and the next topology
		wire.Cut()
		wire.Mend()
		require.NoError(t, publisher(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.PublisherConfig{}).Publish(
			topic, message.NewMessage("1", nil)))
		receive(t, messages).Ack()
		assert.EqualValues(t, 2, taken.Load())
		require.NoError(t, s.Close())
	})
}

func TestSubscribeLetsAPanicOfTheTopologyPass(t *testing.T) {
	eachTrip(t, func(t *testing.T, trip func(), _ *atomic.Int64) {
		a := newAdmin(t, uri(t))
		topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
		broker.Connection.AmqpConfig = &amqp091.Config{ChannelMax: 1}
		armed := true
		broker.TopologyBuilder = &topology{trip: func() {
			if armed {
				trip()
			}
		}}
		s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
		for _, call := range []func() error{
			func() error { _, err := s.Subscribe(t.Context(), topic); return err },
			func() error { return s.SubscribeInitialize(topic) },
		} {
			returned, _ := within(t, func() { _ = call() })
			assert.False(t, returned)
		}
		armed = false
		_, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err, "the one channel is free")
		require.NoError(t, s.Close())
	})
}

package rabbitmq_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

func TestPublishConfirmsACallLongerThanItsWindowInOrder(t *testing.T) {
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		a := newAdmin(t, uri(t))
		topic, broker := a.topic(), rabbitmq.NewQueueConfig(uri(t), q)
		require.NoError(t, rabbitmq.Declare(broker, topic))
		p := publisher(t, broker, rabbitmq.PublisherConfig{Window: 100})
		messages := newMessages(1050)
		require.NoError(t, p.Publish(topic, messages...))
		require.NoError(t, p.Publish(topic))
		for i, d := range a.drain(topic, len(messages)) {
			require.Equal(t, string(messages[i].Payload), string(d.Body))
			require.Equal(t, messages[i].UUID, d.MessageId)
			require.Equal(t, amqp091.Persistent, d.DeliveryMode)
		}
	})
}

func TestPublishTellsThatNoQueueTookAMessage(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.topic()
	for name, broker := range map[string]amqp.Config{
		"queue":            rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}),
		"pubsub":           rabbitmq.NewPubSubConfig(uri(t), "", rabbitmq.Queues{}),
		"watermill-amqp's": amqp.NewDurablePubSubConfig(uri(t), nil),
	} {
		t.Run(name, func(t *testing.T) {
			p := publisher(t, broker, rabbitmq.PublisherConfig{})
			msg := newMessages(1)[0]
			err := p.Publish(topic, msg)
			require.ErrorIs(t, err, outbox.ErrPermanent)
			require.ErrorContains(t, err, msg.UUID)
			require.ErrorContains(t, err, topic)
			require.ErrorContains(t, err, "no queue took it")
			for _, err := range partial(t, p.Publish(topic, newMessages(3)...)) {
				require.ErrorIs(t, err, outbox.ErrPermanent)
			}
			lossy := publisher(t, broker, rabbitmq.PublisherConfig{AllowUnroutable: true})
			require.NoError(t, lossy.Publish(topic, msg))
		})
	}
}

// TestPublishRefusesATopicThatIsTooLong: amqp091 would cut the name, and the queue whose name is left would get the
// message.
func TestPublishRefusesATopicThatIsTooLong(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	long := topic + strings.Repeat("q", 256)
	for what, broker := range map[string]amqp.Config{
		"routing key": rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}),
		"exchange":    rabbitmq.NewPubSubConfig(uri(t), "", rabbitmq.Queues{}),
	} {
		p := publisher(t, broker, rabbitmq.PublisherConfig{})
		for n := 1; n <= 2; n++ {
			err := p.Publish(long, newMessages(n)...)
			require.ErrorIs(t, err, outbox.ErrPermanent)
			require.ErrorContains(t, err, what)
			require.ErrorContains(t, err, "RabbitMQ allows 255")
		}
	}
	require.Zero(t, a.ready(topic))
}

// The headers exchange routes the messages of one call one by one. Some share a UUID, some
// have none, and one marshaler sets nothing that RabbitMQ sends back.
func TestPublishTellsReturnedMessagesApart(t *testing.T) {
	a := newAdmin(t, uri(t))
	for name, marshaler := range map[string]amqp.Marshaler{
		"ours": rabbitmq.Marshaler{}, "watermill-amqp's": amqp.DefaultMarshaler{}, "one without any id": mute{},
	} {
		t.Run(name, func(t *testing.T) {
			topic, broker := headersExchange(t, a)
			broker.Marshaler = marshaler
			p := publisher(t, broker, rabbitmq.PublisherConfig{Window: 8})
			messages := newMessages(200)
			for i, msg := range messages {
				msg.Metadata.Set("wanted", fmt.Sprint(i%3 != 0))
				switch {
				case i%10 == 4:
					msg.UUID = messages[i-1].UUID
				case i%50 == 7:
					msg.UUID = ""
				}
			}
			errs := partial(t, p.Publish(topic, messages...))
			arrived := map[string]bool{}
			for _, d := range a.drain(topic, 133) {
				arrived[string(d.Body)] = true
			}
			for i, err := range errs {
				require.Equal(t, i%3 != 0, err == nil, "message %d: %v", i, err)
				require.Equal(t, err == nil, arrived[string(messages[i].Payload)])
				if err != nil {
					require.ErrorIs(t, err, outbox.ErrPermanent)
				}
			}
			require.Equal(t, 0, a.ready(topic))
		})
	}
}

// mute sends the metadata only.
type mute struct{ amqp.DefaultMarshaler }

func (m mute) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	delete(p.Headers, amqp.DefaultMessageUUIDHeaderKey)
	return p, err
}

// headersExchange binds a queue to what says that it is wanted.
func headersExchange(t *testing.T, a *admin) (topic string, broker amqp.Config) {
	t.Helper()
	topic, broker = a.queue(nil), rabbitmq.NewPubSubConfig(uri(t), "", rabbitmq.Queues{})
	broker.Exchange.Type = "headers"
	ch := a.channel()
	require.NoError(t, ch.ExchangeDeclare(topic, "headers", true, false, false, false, nil))
	require.NoError(t, ch.QueueBind(topic, "", topic, false, amqp091.Table{"wanted": "true"}))
	require.NoError(t, ch.Close())
	return topic, broker
}

func TestPublishTellsThatAMessageWasRefused(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(amqp091.Table{"x-max-length": 2, "x-overflow": "reject-publish"})
	p := publisher(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.PublisherConfig{Window: 1})
	messages := newMessages(5)
	errs := partial(t, p.Publish(topic, messages...))
	for i, err := range errs {
		if i < 2 {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "basic.nack")
		require.ErrorContains(t, err, messages[i].UUID)
		require.NotErrorIs(t, err, outbox.ErrPermanent)
	}
	a.drain(topic, 2)
	require.NoError(t, p.Publish(topic, messages[2]), "the channel goes on")
}

func TestPublishHoldsBackWhatIsBehindAMessageThatCannotBeMarshalled(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	p := publisher(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	long := strings.Repeat("x", 256)
	for name, spoil := range map[string]func(*message.Message){
		"long key":       func(m *message.Message) { m.Metadata.Set(long, "") },
		"routing header": func(m *message.Message) { m.Metadata.Set("CC", "someone") },
		"long metadata":  func(m *message.Message) { m.Metadata.Set("all", strings.Repeat("x", 131_000)) },
	} {
		t.Run(name, func(t *testing.T) {
			messages := newMessages(4)
			spoil(messages[2])
			errs := partial(t, p.Publish(topic, messages...))
			require.NoError(t, errs[0])
			require.NoError(t, errs[1])
			require.ErrorIs(t, errs[2], outbox.ErrPermanent)
			require.ErrorContains(t, errs[2], messages[2].UUID)
			require.NotErrorIs(t, errs[3], outbox.ErrPermanent)
			require.ErrorContains(t, errs[3], "not sent, to keep the order: message \""+messages[2].UUID)
			require.Equal(t, 2, a.ready(topic))
			a.drain(topic, 2)
		})
	}
}

func TestPublishFillsAFrameWithMetadata(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	p := publisher(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	msg := newMessages(1)[0]
	sent := 0
	for size := 130_900; size < 131_072; size++ {
		msg.Metadata.Set("all", strings.Repeat("x", size))
		if err := p.Publish(topic, msg); err != nil {
			require.ErrorIs(t, err, outbox.ErrPermanent, "RabbitMQ closed the connection at %d bytes", size)
			break
		}
		sent++
	}
	require.Greater(t, sent, 10)
	require.Less(t, sent, 171, "there is no limit")
	require.NoError(t, p.Publish(topic, newMessages(1)...))
}

func TestPublishDeclaresALostExchangeAgain(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := headersExchange(t, a)
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	msg := newMessages(1)[0]
	msg.Metadata.Set("wanted", "true")
	require.NoError(t, p.Publish(topic, msg))
	require.NoError(t, a.channel().ExchangeDelete(topic, false, false))
	err := p.Publish(topic, msg)
	require.ErrorContains(t, err, "NOT_FOUND")
	require.NotErrorIs(t, err, outbox.ErrPermanent)
	require.ErrorContains(t, p.Publish(topic, msg), "no queue took it", "the exchange is there, its binding is not")
}

// A message that RabbitMQ takes for a fault of the client costs the channel.
func TestPublishGoesOnAfterALostChannel(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	broker.Marshaler = expiring{}
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	messages := newMessages(300)
	messages[150].Metadata.Set("expiration", "never")
	errs := partial(t, p.Publish(topic, messages...))
	confirmed := accounted(t, errs, topic)
	require.Less(t, confirmed, 151)
	require.GreaterOrEqual(t, a.ready(topic), confirmed)
	err := p.Publish(topic, messages[150])
	require.ErrorIs(t, err, outbox.ErrPermanent, "it was alone, so it was the reason")
	require.NoError(t, p.Publish(topic, messages[:150]...))
}

// expiring sets the property expiration from the metadata.
type expiring struct{ rabbitmq.Marshaler }

func (e expiring) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := e.Marshaler.Marshal(msg)
	p.Expiration = msg.Metadata.Get("expiration")
	return p, err
}

// A message that is nil is an error, and none of the call is sent.
func TestPublishRefusesANilMessage(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	p := publisher(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	require.ErrorContains(t, p.Publish(topic, newMessages(1)[0], nil), "message 2 of 2 is nil")
	require.NoError(t, p.Publish(topic, newMessages(1)...))
	assert.Equal(t, 1, a.ready(topic))
}

// careless is a marshaler that panics.
type careless struct{ rabbitmq.Marshaler }

func (c careless) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if msg.Metadata.Get("panic") != "" {
		panic("careless")
	}
	return c.Marshaler.Marshal(msg)
}

// The panic is the caller's, who may recover from it, and costs no channel.
func TestPublishPanicsWhereItWasCalled(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	broker.Publish.ChannelPoolSize = 1
	broker.Marshaler = careless{}
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	for range 3 {
		msgs := newMessages(2)
		msgs[1].Metadata.Set("panic", "yes")
		require.PanicsWithValue(t, "careless", func() { _ = p.Publish(topic, msgs...) })
	}
	require.NoError(t, p.Publish(topic, newMessages(1)...))
}

func TestPublishInManyGoroutinesSharesAFewChannels(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	broker.Publish.ChannelPoolSize = 3
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	missing := a.topic()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 10 {
				assert.NoError(t, p.Publish(topic, newMessages(5)...))
				assert.ErrorIs(t, p.Publish(missing, newMessages(1)...), outbox.ErrPermanent)
			}
		})
	}
	all.Wait()
	require.Equal(t, 1000, a.ready(topic))
}

func TestPublisherOnASharedConnectionLeavesItOpen(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	conn, err := amqp.NewConnection(broker.Connection, watermill.NopLogger{})
	require.NoError(t, err)
	broker.Connection = amqp.ConnectionConfig{}
	p, err := rabbitmq.NewPublisherWithConnection(conn, broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, p.Publish(topic, newMessages(10)...))
	require.NoError(t, p.Close())
	require.True(t, conn.IsConnected())
	p, err = rabbitmq.NewPublisherWithConnection(conn, broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.ErrorIs(t, p.Publish(topic, newMessages(1)...), rabbitmq.ErrNotConnected)
	require.NoError(t, p.Close())
	_, err = rabbitmq.NewPublisherWithConnection(nil, broker, rabbitmq.PublisherConfig{})
	require.ErrorContains(t, err, "a connection is required")
}

func TestPublisherRefusesWhatWouldLoseMessages(t *testing.T) {
	broker := rabbitmq.NewQueueConfig("", rabbitmq.Queues{})
	broker.Publish.Transactional = true
	broker.Publish.Immediate = true
	broker.Publish.ChannelPoolSize = -1
	_, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{Timeout: -1, Window: -1})
	for _, problem := range []string{
		"Transactional", "Immediate", "ChannelPoolSize -1", "Timeout", "Window -1", "AmqpURI",
	} {
		require.ErrorContains(t, err, problem)
	}
	for address, problem := range map[string]string{"amqp://127.0.0.1:1/": "connect to RabbitMQ", "here": "AmqpURI"} {
		_, err = rabbitmq.NewPublisher(rabbitmq.NewQueueConfig(address, rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
		require.ErrorContains(t, err, problem)
	}
}

// partial returns what became of each message.
func partial(t testing.TB, err error) []error {
	t.Helper()
	var p *outbox.PartialError
	require.ErrorAs(t, err, &p)
	return p.Errors
}

// accounted checks that confirmed messages come first, and returns how many they are.
func accounted(t testing.TB, errs []error, topic string) (confirmed int) {
	t.Helper()
	for i, err := range errs {
		if err == nil {
			require.Equal(t, i, confirmed, "a confirmed message behind one that was not")
			confirmed++
			continue
		}
		require.ErrorContains(t, err, topic)
		require.NotErrorIs(t, err, outbox.ErrPermanent, "nobody knows whose fault it was")
	}
	return confirmed
}

// A channel of RabbitMQ 3.10 that was opened before a quorum queue had its new leader refuses every message,
// for as long as the old one is cut off.
func TestPublishUsesNewChannelsAfterARefusal(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	var first uint16
	tags := make(chan uint64, 1)
	p := publisher(t, rabbitmq.NewQueueConfig(pose(t, 1, func(w *frameWriter) {
		switch calls.Add(1) {
		case 1:
			first = w.channel
		case 2: // two calls at once open two channels
			w.method(first, basicAck, uint64(1), flag(false))
			w.ack(1, false)
		case 3:
			w.nack(w.tag, false)
		default:
			tags <- w.tag
			w.ack(w.tag, false)
		}
	}), rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { assert.NoError(t, p.Publish("topic", newMessages(1)...)) })
	}
	both.Wait()
	require.ErrorContains(t, p.Publish("topic", newMessages(1)...), "basic.nack")
	require.NoError(t, p.Publish("topic", newMessages(1)...))
	assert.EqualValues(t, 1, <-tags, "messages on the channel")
}

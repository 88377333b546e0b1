package interop_test

import (
	"context"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Names of metadata that are no tokens of HTTP get lost, since NATS's header has none.
func TestJetStream(t *testing.T) {
	j := newJetStream(t, 5*time.Second)
	deliver(t, testdb.On(t, "postgres"), broker{
		topic: j.topic, publisher: j.publisher, unordered: true, // what a process had in hand comes after AckWait
		subscriber: func() message.Subscriber { return j.subscriber(0) },
		loses:      []string{"ключ"},
	})
}

// TestJetStreamUnanswered: what was not answered comes again. watermill-nats does not answer when
// a handler takes too long or the subscription ends.
func TestJetStreamUnanswered(t *testing.T) {
	for _, end := range []string{"too late", "cancelled", "closed"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			j := newJetStream(t, time.Second)
			timeout := time.Minute
			if end == "too late" {
				timeout = 100 * time.Millisecond
			}
			first, ctx, cancel := j.subscriber(timeout), t.Context(), func() {}
			if end == "cancelled" {
				ctx, cancel = context.WithCancel(ctx)
			}
			defer cancel()
			messages, err := first.Subscribe(ctx, j.topic)
			require.NoError(t, err)
			j.publish("1")
			msg := next(t, messages)
			switch end {
			case "too late":
				require.NoError(t, happens(msg.Context().Done(), "the subscriber gives up"))
				msg.Nack()
			case "cancelled":
				cancel()
			case "closed":
				require.NoError(t, first.Close())
			}
			if end != "too late" {
				messages, err = j.subscriber(timeout).Subscribe(t.Context(), j.topic)
				require.NoError(t, err)
			}
			again := next(t, messages)
			assert.Equal(t, "1", again.UUID)
			again.Ack()
		})
	}
}

// TestJetStreamRollingDeployment: the process that came first ends, and the other one goes on. One that comes later
// gets nothing again.
func TestJetStreamRollingDeployment(t *testing.T) {
	t.Parallel()
	j := newJetStream(t, time.Second) // after which the next process has what went to the first as it ended
	first, second := j.subscriber(0), j.subscriber(0)
	old, err := first.Subscribe(t.Context(), j.topic)
	require.NoError(t, err)
	j.publish("1")
	next(t, old).Ack()
	j.acked()
	messages, err := second.Subscribe(t.Context(), j.topic)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	j.publish("2")
	msg := next(t, messages)
	assert.Equal(t, "2", msg.UUID)
	msg.Ack()
	j.acked()
	require.NoError(t, second.Close())
	messages, err = j.subscriber(0).Subscribe(t.Context(), j.topic)
	require.NoError(t, err)
	j.publish("3")
	assert.Equal(t, "3", next(t, messages).UUID)
}

// TestJetStreamOutage: the subscription goes on after an outage, however often the client has tried to connect.
func TestJetStreamOutage(t *testing.T) {
	t.Parallel()
	j := newJetStream(t, time.Second)
	wire, through := servers.Before(t, j.subscriberConfig.URL)
	tried := make(chan struct{})
	often := sync.OnceFunc(func() { close(tried) })
	j.subscriberConfig.URL = through
	j.subscriberConfig.NatsOptions = append(j.subscriberConfig.NatsOptions, nats.CustomReconnectDelay(func(tries int) time.Duration {
		if tries == 2*nats.DefaultMaxReconnect {
			often()
		}
		return time.Millisecond
	}))
	messages, err := j.subscriber(0).Subscribe(t.Context(), j.topic)
	require.NoError(t, err)
	wire.Cut()
	require.NoError(t, happens(tried, "the client has tried often"))
	wire.Mend()
	j.publish("1")
	next(t, messages).Ack()
	j.acked()
}

// TestJetStreamLostForGood: two errors of authorization close a connection for good. Its process must know.
func TestJetStreamLostForGood(t *testing.T) {
	for _, whose := range []string{"publisher", "subscriber"} {
		t.Run(whose, func(t *testing.T) {
			t.Parallel()
			j := newJetStream(t, time.Second)
			wire, through := servers.Before(t, j.subscriberConfig.URL)
			soon := nats.CustomReconnectDelay(func(int) time.Duration { return time.Millisecond })
			if whose == "publisher" {
				j.publisherConfig.URL, j.publisherConfig.NatsOptions = through, append(j.publisherConfig.NatsOptions, soon)
			} else {
				j.subscriberConfig.URL, j.subscriberConfig.NatsOptions = through, append(j.subscriberConfig.NatsOptions, soon)
			}
			messages, err := j.subscriber(0).Subscribe(t.Context(), j.topic)
			require.NoError(t, err)
			wire.Aim(refusing(t))
			wire.Cut()
			wire.Mend()
			require.NoError(t, happens(end(messages), "the subscription ends"))
		})
	}
}

// refusing returns where a server of NATS lets nobody in.
func refusing(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, listener.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "INFO {}\r\n-ERR 'Authorization Violation'\r\n") // or the client has left
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	return listener.Addr().String()
}

// TestJetStreamEndings: a subscription ends while the client has a message. If its context ended it, watermill-nats would
// send that on a closed channel, every other time.
func TestJetStreamEndings(t *testing.T) {
	t.Parallel()
	j := newJetStream(t, 10*time.Millisecond) // after which the next subscription has the message
	j.publish("1")
	for range 16 {
		slow := &slow{began: make(chan struct{}), read: make(chan struct{})}
		j.subscriberConfig.Unmarshaler = slow
		ctx, cancel := context.WithCancel(t.Context())
		messages, err := j.subscriber(0).Subscribe(ctx, j.topic)
		require.NoError(t, err)
		require.NoError(t, happens(slow.began, "a message comes"))
		cancel()
		require.NoError(t, happens(end(messages), "the subscription ends"))
		close(slow.read)
	}
}

// slow reads one message, slowly.
type slow struct {
	oneValue
	once        sync.Once
	began, read chan struct{}
}

func (u *slow) Unmarshal(msg *nats.Msg) (*message.Message, error) {
	u.once.Do(func() { close(u.began) })
	<-u.read
	return u.oneValue.Unmarshal(msg)
}

// TestJetStreamMetadata: NATS's header changes metadata; what is in the message's data arrives as it was.
func TestJetStreamMetadata(t *testing.T) {
	metadata := message.Metadata{
		"Traceparent": "00", "ce_id": "1", "order.id": "1", // these arrive
		"order/id": "1", "a b": "1", "a:b": "1", "ключ": "1", "": "1", // their names are no tokens of HTTP
		"note": " Grüße \r\n 🌍\t", "nothing": "", // the value changes
	}
	whole := func() message.Metadata { return maps.Clone(metadata) }
	for name, test := range map[string]struct {
		marshaler wmnats.MarshalerUnmarshaler
		arrives   message.Metadata
	}{
		"header": {&wmnats.NATSMarshaler{}, message.Metadata{
			"Traceparent": "00", "ce_id": "1", "order.id": "1", "note": "Grüße    🌍", "nothing": "",
		}},
		"JSON": {wmnats.JSONMarshaler{}, whole()},
		"gob":  {wmnats.GobMarshaler{}, whole()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJetStream(t, time.Minute)
			j.publisherConfig.Marshaler, j.subscriberConfig.Unmarshaler = test.marshaler, test.marshaler
			publisher, err := wmnats.NewPublisher(j.publisherConfig, watermill.NopLogger{})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
			messages, err := j.subscriber(0).Subscribe(t.Context(), j.topic)
			require.NoError(t, err)
			msg := message.NewMessage("1", binary(1))
			msg.Metadata = whole()
			require.NoError(t, publisher.Publish(j.topic, msg))
			got := next(t, messages)
			assert.Equal(t, "1", got.UUID)
			assert.Equal(t, binary(1), []byte(got.Payload))
			assert.Equal(t, test.arrives, got.Metadata)
			got.Ack()
		})
	}
}

// TestJetStreamForeignMessages: what another program sent is delivered, whatever its header has.
func TestJetStreamForeignMessages(t *testing.T) {
	t.Parallel()
	j := newJetStream(t, time.Second)
	_, err := j.js.Publish(j.topic, []byte("bare"))
	require.NoError(t, err)
	_, err = j.js.PublishMsg(&nats.Msg{Subject: j.topic, Data: []byte("two"), Header: nats.Header{"a": {"1", "2"}}})
	require.NoError(t, err)
	messages, err := j.subscriber(0).Subscribe(t.Context(), j.topic)
	require.NoError(t, err)
	bare := next(t, messages)
	assert.Equal(t, "bare", string(bare.Payload))
	assert.Empty(t, bare.UUID, "the inbox keeps it for an operator")
	bare.Ack()
	two := next(t, messages)
	assert.Equal(t, message.Metadata{"a": "1"}, two.Metadata)
	two.Ack()
	j.acked()
}

// oneValue is that of docs/nats.md.
type oneValue struct{ wmnats.NATSMarshaler }

func (u *oneValue) Unmarshal(msg *nats.Msg) (*message.Message, error) {
	for name, values := range msg.Header {
		msg.Header[name] = values[:1]
	}
	return u.NATSMarshaler.Unmarshal(msg)
}

// jetStream is a stream with the settings of docs/nats.md.
type jetStream struct {
	*testing.T
	topic     string
	js        nats.JetStreamContext
	publisher message.Publisher

	publisherConfig  wmnats.PublisherConfig
	subscriberConfig wmnats.SubscriberConfig
}

func newJetStream(t *testing.T, ackWait time.Duration) *jetStream {
	t.Helper()
	url, topic := service(t, "MILLRACE_TEST_NATS"), freshTopic()
	options := []nats.Option{nats.MaxReconnects(-1)}
	conn, err := nats.Connect(url, options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	require.NoError(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}})
	require.NoError(t, err)
	config := &nats.ConsumerConfig{
		Durable: "billing", DeliverGroup: "billing", DeliverSubject: topic + "-billing",
		AckPolicy: nats.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 2,
	}
	for range 2 { // the second call changes nothing
		_, err = js.UpdateConsumer(topic, config)
		require.NoError(t, err)
	}
	stream := wmnats.JetStreamConfig{
		DurablePrefix:    "billing",
		SubscribeOptions: []nats.SubOpt{nats.Bind(topic, "billing"), nats.ManualAck()},
	}
	j := &jetStream{T: t, topic: topic, js: js, publisherConfig: wmnats.PublisherConfig{
		URL: url, NatsOptions: options, JetStream: stream,
	}, subscriberConfig: wmnats.SubscriberConfig{
		URL: url, NatsOptions: options, JetStream: stream, QueueGroupPrefix: "billing", Unmarshaler: &oneValue{},
	}}
	j.publisher, err = wmnats.NewPublisher(j.publisherConfig, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, j.publisher.Close())
		assert.NoError(t, js.DeleteStream(topic))
	})
	return j
}

// subscriber returns that of a process, which has a publisher too, and gives up a message after a while.
func (j *jetStream) subscriber(timeout time.Duration) message.Subscriber {
	j.Helper()
	lost, lose := context.WithCancel(context.Background())
	closed := nats.ClosedHandler(func(*nats.Conn) { lose() }) // an option of both connections
	produce, config := j.publisherConfig, j.subscriberConfig
	produce.NatsOptions, config.NatsOptions = append(produce.NatsOptions, closed), append(config.NatsOptions, closed)
	publisher, err := wmnats.NewPublisher(produce, watermill.NopLogger{})
	require.NoError(j, err)
	config.AckWaitTimeout = timeout
	s, err := wmnats.NewSubscriber(config, watermill.NopLogger{})
	require.NoError(j, err)
	j.Cleanup(func() {
		assert.NoError(j, publisher.Close())
		assert.NoError(j, s.Close())
	})
	return &ending{Subscriber: s, lost: lost}
}

// ending is that of docs/nats.md.
type ending struct {
	*wmnats.Subscriber
	lost context.Context //nolint:containedctx // it ends with a connection
}

//nolint:contextcheck // the connection may end before the caller
func (e *ending) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	for _, end := range []context.Context{ctx, e.lost} {
		context.AfterFunc(end, func() { _ = e.Close() })
	}
	return e.Subscriber.Subscribe(context.WithoutCancel(ctx), topic)
}

func (j *jetStream) publish(uuid string) {
	j.Helper()
	require.NoError(j, j.publisher.Publish(j.topic, message.NewMessage(uuid, nil)))
}

// acked waits until the server knows of no message that was delivered and not acked.
func (j *jetStream) acked() {
	j.Helper()
	require.EventuallyWithT(j, func(c *assert.CollectT) {
		info, err := j.js.ConsumerInfo(j.topic, "billing")
		require.NoError(c, err)
		assert.Zero(c, info.NumAckPending)
	}, rig.Patience, 10*time.Millisecond)
}

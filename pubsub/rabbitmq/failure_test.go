package rabbitmq_test

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// behind returns a proxy before the broker, and the URI by which it is reached.
func behind(t *testing.T) (*servers.Wire, string) {
	t.Helper()
	return servers.Before(t, uri(t))
}

func TestPublishAfterAnOutageWorksAgain(t *testing.T) {
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
	const window, held = 100, 500
	middle := newTrap(held)
	broker.Marshaler = middle
	p := publisher(t, broker, rabbitmq.PublisherConfig{Window: window})
	messages := newMessages(1000)
	result := make(chan error, 1)
	go func() { result <- p.Publish(topic, messages...) }()
	<-middle.reached
	wire.Cut()
	close(middle.goOn)
	errs := partial(t, <-result)
	confirmed := accounted(t, errs, topic)
	require.GreaterOrEqual(t, confirmed, held-1-window, "of what was sent, all but a window were confirmed")
	require.Less(t, confirmed, 1000)
	require.GreaterOrEqual(t, a.ready(topic), confirmed)

	err := p.Publish(topic, messages...)
	require.ErrorIs(t, err, rabbitmq.ErrNotConnected)
	require.ErrorContains(t, err, topic)
	wire.Mend()
	rig.Eventually(t, "it publishes again", func() bool { return p.Publish(topic, messages[999]) == nil })
	require.NoError(t, p.Publish(topic, messages...))
}

// tap is a connection whose next write can be caught.
type tap struct {
	net.Conn
	next *atomic.Pointer[func(net.Conn)]
}

func (c tap) Write(p []byte) (int, error) {
	if f := c.next.Swap(nil); f != nil {
		(*f)(c.Conn)
	}
	return c.Conn.Write(p)
}

func TestACallThatIsUnderWayAtALossIsNotConnected(t *testing.T) {
	for loss, cut := range map[string]func(wire *servers.Wire, conn net.Conn){
		"reset":  func(wire *servers.Wire, _ net.Conn) { wire.Cut() },
		"closed": func(_ *servers.Wire, conn net.Conn) { _ = conn.Close() },
		"no answer": func(wire *servers.Wire, _ net.Conn) {
			wire.Freeze()
			time.AfterFunc(50*time.Millisecond, wire.Cut)
		},
	} {
		t.Run(loss, func(t *testing.T) {
			t.Parallel()
			wire, through := behind(t)
			topic, broker := newAdmin(t, uri(t)).queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
			for call, connect := range map[string]func(broker amqp.Config) (do func() error){
				"Publish": func(broker amqp.Config) func() error {
					p := publisher(t, broker, rabbitmq.PublisherConfig{})
					return func() error { return p.Publish(topic, newMessages(1)...) }
				},
				"SubscribeInitialize": func(broker amqp.Config) func() error {
					s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
					return func() error { return s.SubscribeInitialize(topic) }
				},
				"Subscribe": func(broker amqp.Config) func() error {
					s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
					return func() error { _, err := s.Subscribe(t.Context(), topic); return err }
				},
			} {
				var next atomic.Pointer[func(net.Conn)]
				broker.Connection.AmqpConfig = &amqp091.Config{
					Heartbeat: time.Hour,
					Dial: func(network, address string) (net.Conn, error) {
						conn, err := amqp091.DefaultDial(rig.Patience)(network, address)
						return tap{conn, &next}, err
					},
				}
				do := connect(broker)
				lose := func(conn net.Conn) { cut(wire, conn) }
				next.Store(&lose)
				err := do()
				require.ErrorIs(t, err, rabbitmq.ErrNotConnected, call)
				require.ErrorContains(t, err, topic, call)
				wire.Mend()
			}
		})
	}
}

func TestARefusalThatEndsTheConnectionIsNoLoss(t *testing.T) {
	topic, broker := newAdmin(t, uri(t)).topic(), rabbitmq.NewPubSubConfig(uri(t), "billing", rabbitmq.Queues{})
	broker.Exchange.Type = "unknown"
	err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).SubscribeInitialize(topic)
	require.ErrorContains(t, err, "unknown")
	require.NotErrorIs(t, err, rabbitmq.ErrNotConnected, "it would be refused again")
}

// trap holds the n-th message up.
type trap struct {
	rabbitmq.Marshaler
	mu            sync.Mutex
	left          int
	reached, goOn chan struct{}
}

func newTrap(n int) *trap {
	return &trap{left: n, reached: make(chan struct{}), goOn: make(chan struct{})}
}

func (m *trap) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	m.mu.Lock()
	m.left--
	now := m.left == 0
	m.mu.Unlock()
	if now {
		close(m.reached)
		<-m.goOn
	}
	return m.Marshaler.Marshal(msg)
}

func TestPublishGivesUpInTimeWhenTheNetworkIsSilent(t *testing.T) {
	t.Parallel()
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: 2 * time.Second})
	other, missing := a.queue(nil), a.topic()
	rig.Eventually(t, "it publishes in time", func() bool { return p.Publish(other, newMessages(1)...) == nil })
	wire.Freeze()
	msg := newMessages(1)[0]
	err := p.Publish(topic, msg)
	require.ErrorIs(t, err, rabbitmq.ErrUnconfirmed)
	require.ErrorContains(t, err, msg.UUID)
	require.NotErrorIs(t, err, outbox.ErrPermanent)
	wire.Thaw()
	rig.Eventually(t, "it arrives late", func() bool { return a.ready(topic) == 1 })
	rig.Eventually(t, "the broker answers in time", func() bool {
		err = p.Publish(missing, newMessages(1)...)
		return !errors.Is(err, rabbitmq.ErrUnconfirmed)
	})
	require.ErrorIs(t, err, outbox.ErrPermanent, "the confirm that came late is not taken for this one's")

	wire.Freeze()
	// More than the sockets hold: amqp091 waits in a write that it cannot bound.
	big := newMessages(400)
	for _, msg := range big {
		msg.Payload = bytes.Repeat([]byte("x"), 100_000)
	}
	endsInTime(t, func() error {
		for range 2 {
			assert.ErrorIs(t, p.Publish(topic, big...), rabbitmq.ErrUnconfirmed)
		}
		return nil
	})
	wire.Thaw()
	rig.Eventually(t, "it publishes again", func() bool { return p.Publish(topic, newMessages(1)...) == nil })
}

func TestCloseEndsThoughTheNetworkIsSilent(t *testing.T) {
	t.Parallel()
	a := newAdmin(t, uri(t))
	wire, through := behind(t)
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(through, rabbitmq.Queues{})
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: 100 * time.Millisecond})
	s := subscriber(t, broker, rabbitmq.SubscriberConfig{CloseTimeout: 100 * time.Millisecond})
	_, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	wire.Freeze()
	require.Error(t, p.Publish(topic, newMessages(1)...))
	endsInTime(t, p.Close)
	endsInTime(t, s.Close)
	require.ErrorIs(t, p.Publish(topic, newMessages(1)...), rabbitmq.ErrClosed)
}

// endsInTime calls what may fail, but not hang.
func endsInTime(t *testing.T, end func() error) {
	t.Helper()
	_ = rig.Within(t, rig.Go(end), "it does not hang")
}

func TestCloseWaitsForCallsInFlight(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.queue(nil), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	middle := newTrap(2)
	broker.Marshaler = middle
	p := publisher(t, broker, rabbitmq.PublisherConfig{})
	result, closed := make(chan error, 1), make(chan error, 2)
	go func() { result <- p.Publish(topic, newMessages(3)...) }()
	<-middle.reached
	for range 2 {
		go func() { closed <- p.Close() }()
	}
	rig.Eventually(t, "later calls are refused", func() bool {
		select {
		case err := <-closed:
			require.Fail(t, "Close does not wait", "%v", err)
		default:
		}
		return len(result) == 0
	})
	close(middle.goOn)
	require.NoError(t, <-result)
	require.NoError(t, <-closed)
	require.NoError(t, <-closed)
	require.ErrorIs(t, p.Publish(topic, newMessages(1)...), rabbitmq.ErrClosed)
	require.Equal(t, 3, a.ready(topic))
}

// ownBrokers are tests that start a broker of their own, which takes seconds.
var ownBrokers = []string{"TestPublishFindsTheMessageThatIsTooLarge", "TestPublishGivesUpInTimeWhenTheBrokerBlocks"}

// The broker says how large a message may be only when it closes the channel.
func TestPublishFindsTheMessageThatIsTooLarge(t *testing.T) {
	testdb.Turn(t, 1, ownBrokers)
	t.Parallel()
	s := servers.RabbitMQ(t, "max_message_size = 100000")
	const topic = "things"
	broker := rabbitmq.NewQueueConfig(s.URL(), rabbitmq.Queues{})
	require.NoError(t, rabbitmq.Declare(broker, topic))
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: rig.Patience})
	messages := newMessages(50)
	messages[20].Payload = make([]byte, 100_001)
	errs := partial(t, p.Publish(topic, messages...))
	for i, err := range errs {
		switch {
		case i == 20:
			require.ErrorIs(t, err, outbox.ErrPermanent)
			require.ErrorContains(t, err, messages[20].UUID)
			require.ErrorContains(t, err, "100000")
		case err != nil:
			require.NotErrorIs(t, err, outbox.ErrPermanent)
		}
	}
	require.NoError(t, p.Publish(topic, append(messages[:20:20], messages[21:]...)...))
	require.ErrorIs(t, p.Publish(topic, messages[20]), outbox.ErrPermanent)

	p = publisher(t, broker, rabbitmq.PublisherConfig{Timeout: 2 * time.Second})
	publishes := func() bool {
		err := p.Publish(topic, messages[0])
		if err != nil {
			t.Log(err)
		}
		return err == nil
	}
	rig.Eventually(t, "it publishes in time", publishes)
	s.Freeze()
	require.ErrorIs(t, p.Publish(topic, messages[0]), rabbitmq.ErrUnconfirmed)
	s.Thaw()
	rig.Eventually(t, "it publishes again", publishes)
	s.Kill()
	require.Error(t, p.Publish(topic, messages[0]))
	rig.Eventually(t, "the loss is noticed", func() bool {
		err := p.Publish(topic, messages[0])
		return err != nil && strings.Contains(err.Error(), "connection refused")
	})
	s.Start()
	rig.Eventually(t, "it publishes again", publishes)
}

// A broker that is short of memory reads nothing more from who publishes.
func TestPublishGivesUpInTimeWhenTheBrokerBlocks(t *testing.T) {
	testdb.Turn(t, 1, ownBrokers)
	t.Parallel()
	s := servers.RabbitMQ(t, "vm_memory_high_watermark.absolute = 1MB")
	broker := rabbitmq.NewQueueConfig(s.URL(), rabbitmq.Queues{})
	require.NoError(t, rabbitmq.Declare(broker, "things"))
	heard := make(diary, 1000)
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: 300 * time.Millisecond, Logger: heard})
	for range 3 {
		require.ErrorIs(t, p.Publish("things", newMessages(3)...), rabbitmq.ErrUnconfirmed)
	}
	heard.until(t, "RabbitMQ takes no messages: low on memory")
	err := p.Publish("things", newMessages(3)...)
	require.ErrorIs(t, err, rabbitmq.ErrUnconfirmed)
	require.ErrorContains(t, err, "it takes no messages while it is low on memory")
	endsInTime(t, p.Close)
}

// speechless is a connection whose writes fail from the given moment on, while it can still be read.
type speechless struct {
	net.Conn
	armed *atomic.Bool
}

var errSpeechless = errors.New("nothing can be written")

func (c speechless) Write(b []byte) (int, error) {
	if c.armed.Load() {
		return 0, errSpeechless
	}
	return c.Conn.Write(b)
}

// TestAWriteThatFailsEndsTheConnection: without heartbeats nothing else would be written, and the
// publisher would wait for confirms of what the broker never got until ConfirmTimeout. RabbitMQ asks for heartbeats
// whatever a client wants, and the next one would end the connection; the impostor asks for none.
func TestAWriteThatFailsEndsTheConnection(t *testing.T) {
	const topic = "topic"
	broker := rabbitmq.NewQueueConfig(pose(t, 1, func(w *frameWriter) { w.ack(1, false) }), rabbitmq.Queues{})
	var armed atomic.Bool
	broker.Connection.AmqpConfig = &amqp091.Config{Heartbeat: time.Hour, Dial: func(network, address string) (net.Conn, error) {
		conn, err := amqp091.DefaultDial(rig.Patience)(network, address)
		return speechless{conn, &armed}, err
	}}
	p := publisher(t, broker, rabbitmq.PublisherConfig{Timeout: time.Hour})
	require.NoError(t, p.Publish(topic, newMessages(1)...))
	armed.Store(true)
	endsInTime(t, func() error {
		err := p.Publish(topic, newMessages(1)...)
		assert.Error(t, err)
		return err
	})
	armed.Store(false)
	rig.Eventually(t, "the publisher has a connection", func() bool { return p.Publish(topic, newMessages(1)...) == nil })
}

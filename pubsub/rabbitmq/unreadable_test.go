package rabbitmq_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// retyping is a connection on which a header gets another type: name is its name and, after it, the type.
type retyping struct {
	net.Conn
	name, to string
	sends    bool         // what is sent is changed, or else what is received
	off      *atomic.Bool // nothing is changed any more
}

func (c *retyping) change(p []byte) []byte {
	if c.off.Load() {
		return p
	}
	return bytes.ReplaceAll(p, []byte(c.name), []byte(c.to))
}

func (c *retyping) Write(p []byte) (int, error) {
	if !c.sends {
		return c.Conn.Write(p)
	}
	return c.Conn.Write(c.change(p))
}

func (c *retyping) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.sends {
		copy(p, c.change(p[:n]))
	}
	return n, err
}

// dialing returns a function for Config.Dial that counts its calls.
func dialing(dialed *atomic.Int64, wrap func(net.Conn) net.Conn) func(network, address string) (net.Conn, error) {
	return func(network, address string) (net.Conn, error) {
		dialed.Add(1)
		conn, err := amqp091.DefaultDial(time.Minute)(network, address)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

// TestHeadersOfOtherClients have types that Go's client did not know for long: it ended the connection.
func TestHeadersOfOtherClients(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	out, err := subscriber(t, rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	for _, c := range []struct {
		sent, to string // the name of the header and its type
		value    any
		want     string
	}{
		{"ushorts", "ushortu", int16(-1), "65535"},
		{"uintI", "uinti", int32(-1), "4294967295"},
		{"octetB", "octetB", byte(255), "255"},
		{"octetb", "octetB", int8(-1), "255"},
		{"listA", "listA", []any{byte(7), int64(-7)}, "[7,-7]"},
	} {
		name := c.sent[:len(c.sent)-1]
		conn, err := amqp091.DialConfig(uri(t), amqp091.Config{Dial: dialing(&atomic.Int64{}, func(conn net.Conn) net.Conn {
			return &retyping{conn, c.sent, c.to, true, &atomic.Bool{}}
		})})
		require.NoError(t, err)
		ch, err := conn.Channel()
		require.NoError(t, err)
		require.NoError(t, ch.PublishWithContext(t.Context(), "", topic, false, false, amqp091.Publishing{
			MessageId: name, Headers: amqp091.Table{name: c.value},
		}))
		require.NoError(t, conn.Close())

		msg := receive(t, out)
		assert.Equal(t, name, msg.UUID)
		assert.Equal(t, c.want, msg.Metadata[name], name)
		assert.False(t, rabbitmq.Redelivered(msg), name)
		msg.Ack()
	}
}

// TestAMessageThatCannotBeRead ends the connection each time it is delivered. The subscriber waits longer from one to the
// next, and says what helps. When the message can be read, it goes on.
func TestAMessageThatCannotBeRead(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	require.NoError(t, a.channel().PublishWithContext(t.Context(), "", topic, false, false, amqp091.Publishing{
		MessageId: "strange", Headers: amqp091.Table{"strange": int32(1)},
	}))
	subscribe := func(first time.Duration) (heard diary, dialed *atomic.Int64, off *atomic.Bool, s *rabbitmq.Subscriber, out <-chan *message.Message) {
		heard, dialed, off = make(diary, 1000), &atomic.Int64{}, &atomic.Bool{}
		broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
		broker.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: first, BackoffMultiplier: 2, BackoffMaxInterval: time.Hour}
		broker.Connection.AmqpConfig = &amqp091.Config{Dial: dialing(dialed, func(conn net.Conn) net.Conn {
			return &retyping{conn, "strangeI", "strangeZ", false, off}
		})}
		s = subscriber(t, broker, rabbitmq.SubscriberConfig{Logger: heard})
		out, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		return heard, dialed, off, s, out
	}
	heard, dialed, _, s, _ := subscribe(time.Hour)
	heard.until(t, "Lost the connection to RabbitMQ: amqp091, the client library, cannot read a message")
	heard.until(t, "waiting before the next: 1h0m0s")
	assert.EqualValues(t, 1, dialed.Load())
	require.NoError(t, s.Close(), "it does not wait for the pause")

	heard, _, off, _, out := subscribe(time.Millisecond)
	for _, pause := range []string{"1ms", "2ms", "4ms", "8ms"} {
		heard.until(t, "waiting before the next: "+pause)
	}
	off.Store(true)
	msg := receive(t, out)
	assert.Equal(t, "strange", msg.UUID)
	assert.Equal(t, "1", msg.Metadata["strange"])
	msg.Ack()
}

// diary gets the lines of a logger.
type diary chan string

func (d diary) until(t *testing.T, text string) {
	t.Helper()
	for {
		if strings.Contains(rig.Within(t, d, text), text) {
			return
		}
	}
}

func (d diary) Error(msg string, err error, _ watermill.LogFields) { d <- fmt.Sprint(msg, ": ", err) }
func (d diary) Info(msg string, fields watermill.LogFields) {
	d <- fmt.Sprint(msg, ": ", fields["pause"])
}
func (d diary) Debug(string, watermill.LogFields)                {}
func (d diary) Trace(string, watermill.LogFields)                {}
func (d diary) With(watermill.LogFields) watermill.LoggerAdapter { return d }

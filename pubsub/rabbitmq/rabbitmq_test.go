package rabbitmq_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func uri(t testing.TB) string {
	t.Helper()
	found := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if found == "" {
		testdb.Missing(t, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	return found
}

// eachQueueType runs body on a classic and on a quorum queue.
func eachQueueType(t *testing.T, body func(t *testing.T, q rabbitmq.Queues)) {
	t.Helper()
	for name, q := range map[string]rabbitmq.Queues{"classic": {}, "quorum": {Quorum: true}} {
		t.Run(name, func(t *testing.T) { body(t, q) })
	}
}

// admin looks at the broker past the code under test.
type admin struct {
	t    testing.TB
	conn *amqp091.Connection
}

func newAdmin(t testing.TB, uri string) *admin {
	t.Helper()
	conn, err := amqp091.Dial(uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the broker may be gone
	return &admin{t, conn}
}

func (a *admin) channel() *amqp091.Channel {
	a.t.Helper()
	ch, err := a.conn.Channel()
	require.NoError(a.t, err)
	return ch
}

// topic returns a new name, whose queue and exchange are deleted after the test.
func (a *admin) topic() string {
	name := "millrace-test-" + watermill.NewShortUUID()
	a.t.Cleanup(func() {
		ch := a.channel()
		for _, suffix := range []string{"", "_group", ".dead", "_group.dead"} {
			_, err := ch.QueueDelete(name+suffix, false, false, false)
			assert.NoError(a.t, err)
			assert.NoError(a.t, ch.ExchangeDelete(name+suffix, false, false))
		}
		assert.NoError(a.t, ch.Close())
	})
	return name
}

// queue declares a queue for a new topic.
func (a *admin) queue(args amqp091.Table) (topic string) {
	a.t.Helper()
	topic = a.topic()
	_, err := a.channel().QueueDeclare(topic, true, false, false, false, args)
	require.NoError(a.t, err)
	return topic
}

// ready is how many messages wait in a queue.
func (a *admin) ready(queue string) int {
	a.t.Helper()
	ch := a.channel()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(a.t, err)
	require.NoError(a.t, ch.Close())
	return q.Messages
}

// drain takes n messages from a queue.
func (a *admin) drain(queue string, n int) []amqp091.Delivery {
	a.t.Helper()
	ch := a.channel()
	deliveries, err := ch.ConsumeWithContext(a.t.Context(), queue, "", true, false, false, false, nil)
	require.NoError(a.t, err)
	all := make([]amqp091.Delivery, 0, n)
	for len(all) < n {
		all = append(all, rig.Within(a.t, deliveries, fmt.Sprintf("message %d of %d", len(all)+1, n)))
	}
	require.NoError(a.t, ch.Close())
	return all
}

func publisher(t testing.TB, broker amqp.Config, config rabbitmq.PublisherConfig) *rabbitmq.Publisher {
	t.Helper()
	p, err := rabbitmq.NewPublisher(broker, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() }) // the test may have broken its connection
	return p
}

func subscriber(t testing.TB, broker amqp.Config, config rabbitmq.SubscriberConfig) *rabbitmq.Subscriber {
	t.Helper()
	s, err := rabbitmq.NewSubscriber(broker, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() }) // the test may have broken its connection
	return s
}

func newMessages(n int) []*message.Message {
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "message %d", i))
	}
	return all
}

func receive(t testing.TB, from <-chan *message.Message) *message.Message {
	t.Helper()
	msg := rig.Within(t, from, "a message")
	require.NotNil(t, msg, "the subscription has ended")
	return msg
}

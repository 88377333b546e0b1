package rabbitmq_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

func TestDeadLettersAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		queues rabbitmq.Queues
		nacks  int
	}{
		"classic": {rabbitmq.Queues{DeadLetters: true}, 1},
		"quorum":  {rabbitmq.Queues{DeadLetters: true, Quorum: true, DeliveryLimit: 2}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdmin(t, uri(t))
			topic, broker := a.topic(), rabbitmq.NewPubSubConfig(uri(t), "group", c.queues)
			out, err := subscriber(t, broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
			require.NoError(t, err)
			msg := newMessages(1)[0]
			require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, msg))
			for range c.nacks {
				receive(t, out).Nack()
			}
			dead := topic + "_group" + rabbitmq.DeadLetterSuffix
			rig.Eventually(t, "the dead letter is there", func() bool { return a.ready(dead) == 1 })
			hearsNothing(t, out)

			reader := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{Quorum: c.queues.Quorum})
			letters, err := subscriber(t, reader, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), dead)
			require.NoError(t, err)
			letter := receive(t, letters)
			require.Equal(t, msg.UUID, letter.UUID)
			require.Equal(t, "1", letter.Metadata[rabbitmq.DeathCountKey])
			require.Contains(t, letter.Metadata[rabbitmq.HeaderPrefix+"x-death"], `"queue":"`+topic+`_group"`)

			back := publisher(t, broker, rabbitmq.PublisherConfig{})
			require.NoError(t, back.Publish(topic, letter), "it can be published again")
			letter.Ack()
			again := receive(t, out)
			require.False(t, rabbitmq.Redelivered(again))
			require.NotContains(t, again.Metadata, rabbitmq.DeathCountKey)
			require.NotContains(t, again.Metadata, rabbitmq.HeaderPrefix+"x-death")
			again.Ack()
		})
	}
}

func TestDeclareTellsOfAQueueWithOtherSettings(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	quorum := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{Quorum: true})
	err := rabbitmq.Declare(quorum, topic)
	require.ErrorContains(t, err, topic)
	require.ErrorContains(t, err, "x-queue-type")
	_, err = subscriber(t, quorum, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, "x-queue-type")
}

// TestNoWaitIsRefused: RabbitMQ's refusal of what was not waited for reaches nobody.
func TestNoWaitIsRefused(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.queue(nil)
	for name, set := range map[string]func(*amqp.Config){
		"Exchange":  func(c *amqp.Config) { c.Exchange.NoWait = true },
		"Queue":     func(c *amqp.Config) { c.Queue.NoWait = true },
		"QueueBind": func(c *amqp.Config) { c.QueueBind.NoWait = true },
		"Consume":   func(c *amqp.Config) { c.Consume.NoWait = true },
	} {
		broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{Quorum: true}) // the queue is classic
		set(&broker)
		refused := func(err error) {
			t.Helper()
			assert.ErrorContains(t, err, name+".NoWait")
		}
		refused(rabbitmq.Declare(broker, topic))
		_, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{})
		refused(err)
		_, err = rabbitmq.Requeue(t.Context(), broker, topic, rabbitmq.RequeueConfig{})
		refused(err)
		if name == "Exchange" { // the others are none of a publisher's
			_, err = rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
			refused(err)
		}
	}
}

// TestANameOfAnotherLengthIsRefused: amqp091 would cut it to what may be the name of another queue or exchange, and
// RabbitMQ would make up a name for an empty one.
func TestANameOfAnotherLengthIsRefused(t *testing.T) {
	long := func(n int) string { return strings.Repeat("q", n) }
	exchange := rabbitmq.NewPubSubConfig(uri(t), "", rabbitmq.Queues{})
	exchange.Queue.GenerateName = amqp.GenerateQueueNameConstant("short")
	key := exchange
	key.Exchange.GenerateName = func(string) string { return "amq.topic" }
	key.Exchange.Type = "topic"
	key.QueueBind.GenerateRoutingKey = func(string) string { return long(256) }
	for name, c := range map[string]struct {
		broker amqp.Config
		topic  string
		says   string
	}{
		"empty":        {rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), "", "the name of the queue is empty"},
		"queue":        {rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), long(256), "queue"},
		"group":        {rabbitmq.NewPubSubConfig(uri(t), "billing", rabbitmq.Queues{}), long(250), "queue"},
		"dead letters": {rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{DeadLetters: true}), long(251), "queue of dead letters"},
		"exchange":     {exchange, long(256), "exchange"},
		"routing key":  {key, "topic", "routing key"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := func(err error) {
				t.Helper()
				require.ErrorContains(t, err, c.says)
				if name != "empty" {
					require.ErrorContains(t, err, "RabbitMQ allows 255")
				}
			}
			refused(rabbitmq.Declare(c.broker, c.topic))
			s := subscriber(t, c.broker, rabbitmq.SubscriberConfig{})
			refused(s.SubscribeInitialize(c.topic))
			_, err := s.Subscribe(t.Context(), c.topic)
			refused(err)
		})
	}
	for _, queue := range []string{"", long(256)} {
		_, err := rabbitmq.Requeue(t.Context(), rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), queue, rabbitmq.RequeueConfig{})
		require.ErrorContains(t, err, "the name of the queue")
	}
}

// TestAStreamIsRefused: RabbitMQ would take a stream's consumer for one of a queue. A stream that exists is refused by
// RabbitMQ, since the Config has another type.
func TestAStreamIsRefused(t *testing.T) {
	a := newAdmin(t, uri(t))
	stream := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeStream}
	existing, topic := a.queue(stream), a.topic()
	broker := rabbitmq.NewPubSubConfig(uri(t), "group", rabbitmq.Queues{})
	broker.Queue.Arguments = stream
	refused := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, `queue "`+topic+`_group"`)
		require.ErrorContains(t, err, "set quorum or classic")
	}
	refused(rabbitmq.Declare(broker, topic))
	s := subscriber(t, broker, rabbitmq.SubscriberConfig{})
	refused(s.SubscribeInitialize(topic))
	_, err := s.Subscribe(t.Context(), topic)
	refused(err)
	err = rabbitmq.Declare(rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{}), existing)
	require.ErrorContains(t, err, existing)
	require.ErrorContains(t, err, "stream")
}

func TestTheLongestNamesWork(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic := a.topic()
	topic += strings.Repeat("q", 255-len(topic))
	broker := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	require.NoError(t, rabbitmq.Declare(broker, topic))
	t.Cleanup(func() {
		_, err := a.channel().QueueDelete(topic, false, false, false)
		assert.NoError(t, err)
	})
	require.NoError(t, publisher(t, broker, rabbitmq.PublisherConfig{}).Publish(topic, newMessages(1)...))
	require.Equal(t, 1, a.ready(topic))
}

func TestDeclareLetsTheFirstMessageBeKept(t *testing.T) {
	a := newAdmin(t, uri(t))
	topic, broker := a.topic(), rabbitmq.NewPubSubConfig(uri(t), "group", rabbitmq.Queues{Quorum: true, DeadLetters: true})
	p := publisher(t, rabbitmq.NewPubSubConfig(uri(t), "", rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	require.ErrorIs(t, p.Publish(topic, newMessages(1)...), outbox.ErrPermanent)
	require.NoError(t, rabbitmq.Declare(broker, topic))
	require.NoError(t, rabbitmq.Declare(broker, topic), "again")
	require.NoError(t, p.Publish(topic, newMessages(1)...))
	require.Equal(t, 1, a.ready(topic+"_group"))
}

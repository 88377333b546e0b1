package deadletter_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/testdb"
)

// rabbit is a topic on RabbitMQ, the queue of the service, and that of its dead letters.
type rabbit struct {
	*bed
	url                string
	topic, queue, dead string
	broker             amqp.Config
	publisher          *rabbitmq.Publisher
	admin              *amqp091.Connection
}

func newRabbit(b *bed, queues rabbitmq.Queues) *rabbit {
	b.Helper()
	url := service(b, "MILLRACE_TEST_RABBITMQ")
	topic := "millrace-test-" + watermill.NewShortUUID()
	r := &rabbit{bed: b, url: url, topic: topic, queue: topic + "_billing", broker: rabbitmq.NewPubSubConfig(url, "billing", queues)}
	r.dead = r.queue + rabbitmq.DeadLetterSuffix
	var err error
	r.admin, err = amqp091.Dial(url)
	require.NoError(b, err)
	b.Cleanup(func() {
		r.remove(r.queue, r.dead, r.topic)
		assert.NoError(b, r.admin.Close())
	})
	require.NoError(b, rabbitmq.Declare(r.broker, topic))
	r.publisher = r.newPublisher(r.broker)
	return r
}

func (r *rabbit) newPublisher(broker amqp.Config) *rabbitmq.Publisher {
	r.Helper()
	p, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, p.Close()) })
	return p
}

func (r *rabbit) newSubscriber(broker amqp.Config) *rabbitmq.Subscriber {
	r.Helper()
	s, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 4})
	require.NoError(r, err)
	r.Cleanup(func() { _ = s.Close() }) // the test may have cut its connection
	return s
}

func (r *rabbit) channel() *amqp091.Channel {
	r.Helper()
	ch, err := r.admin.Channel()
	require.NoError(r, err)
	return ch
}

// remove deletes queues and exchanges.
func (r *rabbit) remove(names ...string) {
	r.Helper()
	ch := r.channel()
	for _, name := range names {
		_, err := ch.QueueDelete(name, false, false, false)
		assert.NoError(r, err)
		assert.NoError(r, ch.ExchangeDelete(name, false, false))
	}
	assert.NoError(r, ch.Close())
}

// declare declares a queue of its own.
func (r *rabbit) declare(suffix string, args amqp091.Table) (queue string) {
	r.Helper()
	ch := r.channel()
	q, err := ch.QueueDeclare(r.topic+suffix, true, false, false, false, args)
	require.NoError(r, err)
	require.NoError(r, ch.Close())
	r.Cleanup(func() { r.remove(q.Name) })
	return q.Name
}

// ready is how many messages wait in a queue.
func (r *rabbit) ready(queue string) int {
	r.Helper()
	ch := r.channel()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(r, err)
	require.NoError(r, ch.Close())
	return q.Messages
}

func (r *rabbit) publish(messages ...*message.Message) {
	r.Helper()
	require.NoError(r, r.publisher.Publish(r.topic, messages...))
}

// inbox is the middleware of the service.
func (b *bed) inbox(change ...func(*millrace.Inbox)) millrace.Inbox {
	i := millrace.Inbox{Store: b.process(), Consumer: "billing"}
	for _, c := range change {
		c(&i)
	}
	return i
}

// serve starts the service: middlewares around the inbox, and its handler.
func (r *rabbit) serve(inbox millrace.Inbox, around ...message.HandlerMiddleware) {
	r.Helper()
	r.start(inbox.Store, func(router *message.Router) {
		router.AddMiddleware(append(around, inbox.Middleware)...)
		router.AddConsumerHandler("billing", r.topic, r.newSubscriber(r.broker), r.handle)
	})
}

// losesAck fails the first delivery of each of messages after it was handled.
func losesAck(messages ...*message.Message) message.HandlerMiddleware {
	lost := map[string]chan struct{}{}
	for _, msg := range messages {
		lost[msg.UUID] = make(chan struct{}, 1)
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			select {
			case lost[msg.UUID] <- struct{}{}: // a nil channel takes nothing
				return nil, errAckLost
			default:
				return produced, err
			}
		}
	}
}

// each runs body on each database.
func each(t *testing.T, body func(*bed)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) { body(newBed(t, db)) })
}

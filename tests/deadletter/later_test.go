package deadletter_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// retryLater stands around the inbox. It publishes what failed to where it waits, a few times, and
// then to where somebody looks.
func retryLater(publisher message.Publisher, waiting, givenUp string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err == nil || !theHandlersFault(err) {
				return produced, err
			}
			again, topic := msg.Copy(), waiting
			attempts, _ := strconv.Atoi(msg.Metadata.Get("attempts")) // 0 at first
			if attempts++; attempts == 3 {
				topic = givenUp
			}
			again.Metadata.Set("attempts", strconv.Itoa(attempts))
			return nil, publisher.Publish(topic, again)
		}
	}
}

// What fails waits in a queue of RabbitMQ and comes back from there when it expires: some of it
// twice, since the ack got lost behind it. A message that fails once more than that is sent back
// when the handler is fixed.
func TestRetryTopic(t *testing.T) {
	t.Parallel()
	each(t, func(b *bed) {
		r := newRabbit(b, rabbitmq.Queues{})
		waiting := r.declare("_waiting", amqp091.Table{
			amqp091.QueueMessageTTLArg: 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": r.queue,
		})
		givenUp := r.declare("_given_up", nil)
		later := r.newPublisher(rabbitmq.NewQueueConfig(r.url, rabbitmq.Queues{}))
		messages := newMessages(12)
		bad, good := of("bad", messages), of("good", messages)
		r.serve(b.inbox(), losesAck(good[0], bad[0], bad[1]), retryLater(later, waiting, givenUp), failsTwice(good[1], good[2]))
		r.publish(messages...)
		b.endsIn(once(good...))
		letters := len(bad) + 2 // where the ack was lost, two copies go round
		rig.Eventually(b, "the bad ones are given up", func() bool { return r.ready(givenUp) == letters })

		b.fixed.Store(true)
		done, err := rabbitmq.Requeue(b.Context(), r.broker, givenUp, rabbitmq.RequeueConfig{
			To: func(*message.Message) (string, error) { return r.queue, nil },
		})
		require.NoError(b, err)
		require.Equal(b, letters, done.Sent)
		b.endsIn(once(messages...))
		rig.Eventually(b, "every copy is told", func() bool {
			return b.events.Count("completed") == len(messages) && b.events.Count("duplicate") >= letters-len(bad)
		})
		for _, msg := range bad {
			b.keeps(msg)
			require.Equal(b, "3", b.given(msg)["attempts"])
			require.Equal(b, "1", b.given(msg)[inbox.ReplayAttemptField])
		}
		b.nothingOpen()
		require.Equal(b, once(messages...), b.ledger())
	})
}

// failsTwice fails the first two runs for each of messages, inside of retryLater.
func failsTwice(messages ...*message.Message) message.HandlerMiddleware {
	var mu sync.Mutex
	left := map[string]int{}
	for _, msg := range messages {
		left[msg.UUID] = 2
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			if left[msg.UUID]--; left[msg.UUID] >= 0 {
				return nil, errBroken
			}
			return next(msg)
		}
	}
}

// Where no consumer rejected it, RabbitMQ drops a message that would come into a queue for the
// second time. So a queue with a delivery limit must not have one for its dead letters from which
// they come back by themselves.
func TestADeliveryLimitAndAWaitingQueueLoseMessages(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	r := newRabbit(b, rabbitmq.Queues{})
	waiting := r.declare("_waiting", amqp091.Table{
		amqp091.QueueMessageTTLArg: 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": r.topic + "_limited",
	})
	witness := r.declare("_given_up", nil)
	limited := r.declare("_limited", amqp091.Table{
		amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-delivery-limit": 1, "x-dead-letter-exchange": witness,
	})
	queues := rabbitmq.NewQueueConfig(r.url, rabbitmq.Queues{})
	require.NoError(t, r.newPublisher(queues).Publish(limited, newMessages(1)...))
	ch := r.channel()
	require.NoError(t, ch.ExchangeDeclare(witness, amqp091.ExchangeFanout, true, false, false, false, nil))
	for _, queue := range []string{waiting, witness} {
		require.NoError(t, ch.QueueBind(queue, "", witness, false, nil))
	}
	for range 2 {
		rig.Eventually(b, "it is delivered", func() bool {
			d, found, err := ch.Get(limited, false)
			require.NoError(t, err)
			return found && assert.NoError(t, d.Reject(true)) // from 4.3 on it does not count a nack
		})
	}
	rig.Eventually(b, "it is given up", func() bool { return r.ready(witness) == 1 })
	rig.Eventually(b, "it has expired", func() bool { return r.ready(waiting) == 0 })
	require.Never(t, func() bool { return r.ready(limited) > 0 }, 300*time.Millisecond, 20*time.Millisecond)
}

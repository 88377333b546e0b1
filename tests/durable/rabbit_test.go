package durable_test

import (
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// One message of a batch ends the process that handles it. Each time a supervisor starts
// another one, which gets from RabbitMQ what was not acked. In the end that message is
// parked, after exactly MaxAttempts tries that were counted, and no other was charged.
func TestMessageThatEndsTheProcess(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		for mode, name := range modes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b, s := newServed(t, testdb.On(t, db.Dialect))
				s.Mode, s.MaxAttempts, s.Lease, s.Queue = mode, 3, lapsing(), newQueue(t)
				killer, neighbours := newMessage(), []*message.Message{}
				killer.Metadata.Set(endsProcess, "yes")
				for range 8 {
					neighbours = append(neighbours, newMessage())
				}
				fill(t, s.Queue, append(append(append([]*message.Message{}, neighbours[:4]...), killer), neighbours[4:]...)...)

				tries := b.supervise(s, func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 && waiting(t, s.Queue) == 0 })
				parked := b.only(b.store, admin.Parked)
				assert.Equal(t, killer.UUID, parked.UUID)
				assert.Equal(t, s.MaxAttempts, parked.Attempts)
				assert.Contains(t, parked.Reason, "it may end the process")
				counted := map[int]int{}
				for _, attempts := range tries[killer.UUID] {
					counted[attempts]++
				}
				for attempt := range s.MaxAttempts {
					assert.Equal(t, 1, counted[attempt+1], "runs of the killer that were counted as attempt %d: %v", attempt+1, counted)
				}
				for _, msg := range neighbours {
					assert.Equal(t, 1, b.works(msg.UUID), "effects of a neighbour")
					for _, attempts := range tries[msg.UUID] {
						assert.LessOrEqual(t, attempts, 1, "a neighbour is counted before it runs alone, and then it is done")
					}
				}
				t.Logf("the killer ran %d times: attempts as they were counted %v", len(tries[killer.UUID]), tries[killer.UUID])
			})
		}
	})
}

// supervise starts a process whenever the last one ended, until it is done, and returns for
// each message how often it was tried before each of its runs.
func (b *bed) supervise(s served, done func() bool) (tries map[string][]int) {
	b.Helper()
	tries = map[string][]int{}
	ended := func(p *process.Process) {
		for _, e := range p.Events(ran) {
			tries[e.UUID] = append(tries[e.UUID], e.Counts["attempts"])
		}
	}
	const most = 15
	for range most {
		p := s.launch(b.T)
		over := false
		rig.Eventually(b, "the process ends, or all is done", func() bool {
			select {
			case <-p.Ended():
				return true
			default:
				over = done()
				return over
			}
		})
		if over {
			p.Close()
		}
		ended(p)
		if over {
			return tries
		}
		b.lapse()
	}
	require.Fail(b, "the message goes on ending processes", "%v", tries)
	return nil
}

// newQueue declares a queue of RabbitMQ that goes away with t.
func newQueue(t *testing.T) (name string) {
	t.Helper()
	name = "durable-" + watermill.NewUUID()
	ch := brokerChannel(t)
	_, err := ch.QueueDeclare(name, true, false, false, false, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := ch.QueueDelete(name, false, false, false)
		assert.NoError(t, err)
	})
	return name
}

func brokerChannel(t *testing.T) *amqp091.Channel {
	t.Helper()
	url := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if url == "" {
		testdb.Missing(t, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	conn, err := amqp091.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// fill publishes to a queue.
func fill(t *testing.T, queue string, msgs ...*message.Message) {
	t.Helper()
	p, err := rabbitmq.NewPublisher(rabbitmq.NewQueueConfig(os.Getenv("MILLRACE_TEST_RABBITMQ"), rabbitmq.Queues{}), rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	require.NoError(t, p.Publish(queue, msgs...))
	require.NoError(t, p.Close())
}

// waiting is how many messages nobody has been given.
func waiting(t *testing.T, queue string) int {
	t.Helper()
	q, err := brokerChannel(t).QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// A handler fails always. RabbitMQ would deliver its message again and again, as fast as it can;
// with Durable in between it is tried after pauses that grow, and MaxAttempts times.
func TestNackStorm(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Each(t, inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		queue := newQueue(t)
		fill(t, queue, newMessage())
		durable := pubsub.Durable{
			Store: b.store, Consumer: consumer, Mode: mode, Poll: 10 * time.Millisecond,
			MaxAttempts: 8, MinBackoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond,
		}
		sub, err := durable.Decorate(fromQueue(t, queue))
		require.NoError(t, err)
		ran := make(chan time.Time, 1000)
		router := rig.NewRouter(t)
		router.AddConsumerHandler(consumer, "orders", sub, func(*message.Message) error {
			ran <- time.Now()
			return errBoom
		})
		ended := rig.Run(t, router)
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.Len(t, ran, durable.MaxAttempts, "runs")
		assert.Zero(t, waiting(t, queue), "it is not with RabbitMQ any more")
		// Each pause is drawn between nothing and 50, 100, 200, 400, then 500 ms: one sum in a
		// million is below this.
		first, last := <-ran, time.Time{}
		for range durable.MaxAttempts - 1 {
			last = <-ran
		}
		assert.Greater(t, last.Sub(first), 100*time.Millisecond)
	}))
}

// fromQueue subscribes to a queue, whatever the topic is called.
func fromQueue(t *testing.T, queue string) *rabbitmq.Subscriber {
	t.Helper()
	broker := rabbitmq.NewQueueConfig(os.Getenv("MILLRACE_TEST_RABBITMQ"), rabbitmq.Queues{})
	broker.Queue.GenerateName = func(string) string { return queue }
	sub, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 10})
	require.NoError(t, err)
	return sub
}

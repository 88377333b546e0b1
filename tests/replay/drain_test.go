package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/remaining"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// drainBodies: a topic that delivers nothing, and a subscriber that knows how many messages it has.
var drainBodies = []testdb.Body{
	{Name: "a silent topic that is not empty", Why: "the replay is not done, and can be gone on with", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		errLost := errors.New("the connection is lost")
		from := &silent{}
		dead := replay.Dead{Name: "dead", From: from, Topic: "poison", To: replay.Outbox(b.out), By: ada, Idle: 10 * time.Millisecond}
		drain := func(counts ...int) (replay.Status, error) {
			from.counts = counts
			status, err := b.replayer().Drain(t.Context(), dead)
			assert.Empty(t, from.counts)
			return status, err
		}
		from.lost = errLost
		status, err := drain()
		require.ErrorIs(t, err, errLost)
		assert.Equal(t, replay.Running, status.State)
		from.lost = nil
		status, err = drain(7, 7)
		require.ErrorContains(t, err, `nothing came for 20ms, although "poison" has 7 messages`)
		assert.Equal(t, replay.Running, status.State)
		status, err = drain(7, 0)
		require.NoError(t, err)
		assert.Equal(t, replay.Done, status.State)
	})},
}

// silent is a subscriber that delivers nothing, and says how many messages there are, or why it cannot.
type silent struct {
	counts []int
	lost   error
}

// Subscribe returns a channel that gives nothing.
func (s *silent) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	remaining.Tell(ctx, func() (int, error) {
		if s.lost != nil {
			return 0, s.lost
		}
		n := s.counts[0]
		s.counts = s.counts[1:]
		return n, nil
	})
	return make(chan *message.Message), nil
}

// Close does nothing.
func (*silent) Close() error { return nil }

// dead is a replay of the letters of a queue of RabbitMQ.
func (b *bed) dead(from message.Subscriber, queue string, idle time.Duration) replay.Dead {
	return replay.Dead{
		Name: "dead", From: from, Topic: queue, To: replay.Outbox(b.out), By: ada, Idle: idle,
		TopicOf: func(*message.Message) (string, error) { return "orders", nil },
	}
}

// TestDrainRefusesALimitBelowZero: with one, nothing would be sent and the replay be done for good.
func TestDrainRefusesALimitBelowZero(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	_, err := b.replayer().Drain(t.Context(), replay.Dead{
		Name: "dead", From: rig.NewFeed(), To: replay.Outbox(b.out), By: ada, Limit: -1, Idle: -time.Second, PerSecond: -1,
	})
	for _, problem := range []string{"needs From and Topic", "Limit -1 is negative", "Idle -1s is negative", "PerSecond -1 is negative"} {
		require.ErrorContains(t, err, problem)
	}
	_, err = b.replayer().Drain(t.Context(), replay.Dead{
		Name: "dead", From: rig.NewFeed(), Topic: "poison", To: replay.Outbox(b.out), By: ada, Limit: -1,
	})
	require.ErrorContains(t, err, "Limit -1 is negative")
	assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_replays`))
}

// letters publishes dead letters to a new quorum queue of RabbitMQ.
func letters(t *testing.T, n int) (broker amqp.Config, uri, queue string) {
	uri = os.Getenv("MILLRACE_TEST_RABBITMQ")
	if uri == "" {
		testdb.Missing(t, "RabbitMQ", "set MILLRACE_TEST_RABBITMQ")
	}
	queue = "millrace-drain-" + watermill.NewShortUUID()
	broker = rabbitmq.NewQueueConfig(uri, rabbitmq.Queues{Quorum: true})
	require.NoError(t, rabbitmq.Declare(broker, queue))
	t.Cleanup(func() {
		conn, err := amqp091.Dial(uri)
		require.NoError(t, err)
		channel, err := conn.Channel()
		require.NoError(t, err)
		_, err = channel.QueueDelete(queue, false, false, false)
		assert.NoError(t, err)
		assert.NoError(t, conn.Close())
	})
	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	for i := range n {
		require.NoError(t, publisher.Publish(queue, order(i)))
	}
	return broker, uri, queue
}

// TestDrainOfALostConnection: RabbitMQ is away for longer than Idle.
func TestDrainOfALostConnection(t *testing.T) {
	t.Parallel()
	const n = 5
	broker, uri, queue := letters(t, n)
	b := newBed(t, testdb.On(t, "sqlite"))
	wire, through := servers.Before(t, uri)
	broker.Connection.AmqpURI = through
	from, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, from.Close()) })

	cut := sync.OnceFunc(wire.Cut)
	dead := b.dead(from, queue, 10*time.Second)
	dead.Progress = func(replay.Status) { cut() }
	status, err := b.replayer().Drain(t.Context(), dead)
	require.ErrorIs(t, err, rabbitmq.ErrNotConnected)
	require.ErrorContains(t, err, queue)
	assert.Equal(t, replay.Running, status.State)
	assert.Less(t, status.Sent, n)
	wire.Mend()
	dead.Progress = nil
	rig.Eventually(t, "it goes on once there is a connection", func() bool {
		status, err = b.replayer().Drain(t.Context(), dead)
		return err == nil
	})
	assert.Equal(t, replay.Done, status.State)
	assert.Equal(t, n, b.count(`SELECT COUNT(DISTINCT uuid) FROM millrace_outbox`))
}

// refusing is a marshaler that cannot read a message, for the first n times.
type refusing struct {
	rabbitmq.Marshaler
	n *atomic.Int64
}

// Unmarshal implements amqp.Marshaler.
func (r refusing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if r.n.Add(-1) >= 0 {
		return nil, errors.New("no message")
	}
	return r.Marshaler.Unmarshal(d)
}

// TestDrainOfAnUnreadableLetter: RabbitMQ has delivered it, and counts it no more.
func TestDrainOfAnUnreadableLetter(t *testing.T) {
	t.Parallel()
	broker, _, queue := letters(t, 1)
	b := newBed(t, testdb.On(t, "sqlite"))
	var n atomic.Int64
	n.Store(math.MaxInt64)
	broker.Marshaler = refusing{n: &n}
	from, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, from.Close()) })
	status, err := b.replayer().Drain(t.Context(), b.dead(from, queue, 500*time.Millisecond))
	require.ErrorContains(t, err, "has 1 messages")
	require.ErrorContains(t, err, "can they not be read?")
	assert.Equal(t, replay.Running, status.State)
	n.Store(0)
	status, err = b.replayer().Drain(t.Context(), b.dead(from, queue, 10*time.Second))
	require.NoError(t, err)
	assert.Equal(t, replay.Done, status.State)
	assert.Equal(t, 1, status.Sent)

	publisher, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	tries := 0
	rig.Eventually(t, "one that was read at the second attempt is gone", func() bool { // a slow broker is asked too early
		tries++
		require.NoError(t, publisher.Publish(queue, order(tries)))
		n.Store(1)
		dead := b.dead(from, queue, 800*time.Millisecond) // the marshaler's second attempt comes after a second
		dead.Name = fmt.Sprint("dead ", tries)
		status, err = b.replayer().Drain(t.Context(), dead)
		return err == nil && status.Sent > 0
	})
}

// TestDrainTakesWhatCameMeanwhile: a letter comes while the subscriber says that there is none.
func TestDrainTakesWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	from := late{make(chan *message.Message, 1)}
	dead := b.dead(from, "poison", 10*time.Millisecond)
	dead.Limit = 1
	status, err := b.replayer().Drain(t.Context(), dead)
	require.NoError(t, err)
	assert.Equal(t, 1, status.Sent)
}

// late delivers a message once it is asked how many there are.
type late struct{ out chan *message.Message }

// Subscribe implements message.Subscriber.
func (l late) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	remaining.Tell(ctx, func() (int, error) {
		l.out <- order(1)
		return 0, nil
	})
	return l.out, nil
}

// Close does nothing.
func (late) Close() error { return nil }

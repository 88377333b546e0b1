package gate_test

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// maxRedeliveries is how many a standing gap may cost in any second.
const maxRedeliveries = 20

// A gap that nothing closes stands in front of a source, which delivers other aggregates
// meanwhile. What cannot be applied comes again and again, but never fast.
func TestStandingGap(t *testing.T) {
	testdb.Turn(t, 1, seconds)
	t.Parallel()
	fail := millrace.VersionGate{OnGap: inbox.GapFail}
	type source struct {
		name     string
		open     func(*bed, string) (message.Publisher, message.Subscriber)
		gate     millrace.VersionGate
		durable  bool
		standing int
		flow     bool // others are handled meanwhile
	}
	for _, c := range testdb.Sample(t, 2, []source{
		{"gochannel, hold", openChannel, millrace.VersionGate{}, true, 30, true},
		{"gochannel, hold without a queue", openChannel, millrace.VersionGate{}, false, 30, true},
		{"gochannel, fail", openChannel, fail, false, 1, true},
		{"gochannel, many fail", openChannel, fail, false, 30, true},
		{"rabbitmq, fail", openRabbit, fail, false, 30, true},
		{"watermill-amqp, hold", openAMQP, millrace.VersionGate{}, true, 30, true},
		{"watermill-amqp, fail", openAMQP, fail, false, 1, false}, // it delivers nothing else: this policy is not for it
	}) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := &standingGap{bed: newBed(t, tuned(t, testdb.On(t, "sqlite"))), topic: "changes-" + watermill.NewShortUUID()}
			pub, sub := c.open(g.bed, g.topic)
			g.run(pub, sub, c.gate, c.durable, c.standing)
			if c.flow {
				rig.Eventually(g, "others are handled", func() bool { return g.flow.Load() > 20 })
			}
		})
	}
}

type standingGap struct {
	*bed
	topic string
	pub   message.Publisher
	flow  atomic.Int64 // messages of other aggregates that were handled

	mu   sync.Mutex
	came map[string][]time.Time // deliveries of each message that waits

	// stalls are when this process did not run, and could pace nothing, with a while after each.
	stalls [][2]time.Time
}

func (g *standingGap) run(
	pub message.Publisher, sub message.Subscriber, gate millrace.VersionGate, durable bool, standing int,
) {
	g.pub, g.came = pub, map[string][]time.Time{}
	go g.watch()
	if durable {
		var err error
		sub, err = pubsub.Durable{Store: g.store, Consumer: consumer}.Decorate(sub)
		require.NoError(g, err)
	}
	router := g.newRouter(g.store, gate, g.count)
	router.AddConsumerHandler(consumer, g.topic, sub, apply)
	rig.Run(g, router)
	for v := range int64(standing) {
		require.NoError(g, pub.Publish(g.topic, change("gap", v+2)))
	}
	for range 3 {
		g.next()
	}
	<-time.After(2 * time.Second) // what is measured
	most, all := g.busiest()
	g.Logf("%d messages wait: %d redeliveries, at most %d in a second, beside %d of others; %d held, %d parked",
		standing, all, most, g.flow.Load(), g.open(admin.Held), g.open(admin.Parked))
	assert.Less(g, most, maxRedeliveries)
	assert.Empty(g, g.applied("gap"))
	if durable {
		rig.Eventually(g, "all are held", func() bool { return g.open(admin.Held) == standing })
		assert.Zero(g, all)
	}
}

// watch notes the stalls.
func (g *standingGap) watch() {
	const long = 500 * time.Millisecond
	tick := time.NewTicker(long / 10)
	defer tick.Stop()
	for last := time.Now(); g.Context().Err() == nil; {
		<-tick.C
		now := time.Now()
		if now.Sub(last) > long {
			g.mu.Lock()
			g.stalls = append(g.stalls, [2]time.Time{last, now.Add(long)})
			g.mu.Unlock()
		}
		last = now
	}
}

// stalled reports whether the process did not run in the second from a time on.
func (g *standingGap) stalled(from time.Time) bool {
	return slices.ContainsFunc(g.stalls, func(stall [2]time.Time) bool {
		return from.Before(stall[1]) && from.Add(time.Second).After(stall[0])
	})
}

// count keeps the flow of other aggregates going, and notes when those that wait come.
func (g *standingGap) count(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if msg.Metadata.Get(inbox.AggregateField) == "gap" {
			g.mu.Lock()
			g.came[msg.UUID] = append(g.came[msg.UUID], time.Now())
			g.mu.Unlock()
			return next(msg)
		}
		produced, err := next(msg)
		if g.flow.Add(1); g.Context().Err() == nil {
			g.next()
		}
		return produced, err
	}
}

// next publishes one more message of another aggregate.
func (g *standingGap) next() { _ = g.pub.Publish(g.topic, change(watermill.NewShortUUID(), 1)) }

// busiest returns the most redeliveries in any second without a stall, and all.
func (g *standingGap) busiest() (most, all int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var again []time.Time
	for _, times := range g.came {
		again = append(again, times[1:]...)
	}
	slices.SortFunc(again, time.Time.Compare)
	for i, from := range again {
		if g.stalled(from) {
			continue
		}
		n := 0
		for _, at := range again[i:] {
			if at.Sub(from) < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most, len(again)
}

func openChannel(b *bed, _ string) (message.Publisher, message.Subscriber) {
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	b.Cleanup(func() { assert.NoError(b, channel.Close()) })
	return channel, channel
}

func rabbitURL(b *bed) string {
	b.Helper()
	url := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if url == "" {
		testdb.Missing(b, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	return url
}

// openRabbit opens a queue with several messages in flight.
func openRabbit(b *bed, topic string) (message.Publisher, message.Subscriber) {
	b.Helper()
	broker := rabbitmq.NewQueueConfig(rabbitURL(b), rabbitmq.Queues{})
	broker.Queue.AutoDelete = true
	sub, err := rabbitmq.NewSubscriber(broker, rabbitmq.SubscriberConfig{InFlight: 40})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, sub.Close()) })
	require.NoError(b, sub.SubscribeInitialize(topic))
	pub, err := rabbitmq.NewPublisher(broker, rabbitmq.PublisherConfig{})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, pub.Close()) })
	return pub, sub
}

// openAMQP opens a queue with one message in flight.
func openAMQP(b *bed, topic string) (message.Publisher, message.Subscriber) {
	b.Helper()
	config := amqp.NewDurableQueueConfig(rabbitURL(b))
	config.Queue.AutoDelete = true
	sub, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, sub.Close()) })
	require.NoError(b, sub.SubscribeInitialize(topic))
	pub, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, pub.Close()) })
	return pub, sub
}

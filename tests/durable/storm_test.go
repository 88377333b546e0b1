package durable_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A handler fails always. RabbitMQ delivers its message again and again, as fast as it can;
// with Durable in between, after pauses that grow, and MaxAttempts times.
func TestNackStorm(t *testing.T) {
	t.Parallel()
	const lasts = time.Second
	plain := &storm{}
	queue := newQueue(t)
	fill(t, queue, newMessage())
	stop := plain.serve(t, fromQueue(t, queue))
	began := plain.await(t, 1)[0]
	require.Eventually(t, func() bool { return time.Since(began) > lasts }, time.Minute, lasts/10)
	stop()
	runs := plain.all()
	rate := float64(len(runs)) / runs[len(runs)-1].Sub(began).Seconds()
	t.Logf("without Durable: %d runs, %.0f a second", len(runs), rate)
	assert.Greater(t, rate, 20.0, "a storm")

	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		for mode, name := range modes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBed(t, testdb.On(t, db.Dialect))
				b.calm(mode)
			})
		}
	})
}

// calm has the failing handler behind Durable.
func (b *bed) calm(mode pubsub.Mode) {
	b.Helper()
	queue := newQueue(b.T)
	fill(b.T, queue, newMessage())
	durable := pubsub.Durable{
		Store: b.store, Consumer: consumer, Mode: mode, Poll: 10 * time.Millisecond,
		MaxAttempts: 8, MinBackoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond,
	}
	sub, err := durable.Decorate(fromQueue(b.T, queue))
	require.NoError(b, err)
	s := &storm{}
	stop := s.serve(b.T, sub)
	rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
	stop()
	runs := s.all()
	require.Len(b, runs, durable.MaxAttempts, "runs")
	assert.Zero(b, waiting(b.T, queue), "it is not with RabbitMQ any more")
	var pauses []time.Duration
	for n := range runs[1:] {
		pauses = append(pauses, runs[n+1].Sub(runs[n]).Round(time.Millisecond))
	}
	// Each pause is drawn between nothing and 50, 100, 200, 400, then 500 ms: one sum in a
	// million is below this.
	took := runs[len(runs)-1].Sub(runs[0])
	assert.Greater(b, took, 100*time.Millisecond, "the pauses: %v", pauses)
	b.Logf("with Durable: %d runs in %v, then parked; pauses %v", len(runs), took.Round(time.Millisecond), pauses)
}

// storm is a handler that fails always, and notes when it ran.
type storm struct {
	mu   sync.Mutex
	runs []time.Time
}

func (s *storm) handle(*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, time.Now())
	return errBoom
}

func (s *storm) all() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time{}, s.runs...)
}

func (s *storm) await(t *testing.T, n int) []time.Time {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.all()) >= n }, rig.Patience, time.Millisecond)
	return s.all()
}

// serve runs the handler on what sub delivers, until stop.
func (s *storm) serve(t *testing.T, sub message.Subscriber) (stop func()) {
	t.Helper()
	router := rig.NewRouter(t)
	router.AddConsumerHandler(consumer, "orders", sub, s.handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	stop = sync.OnceFunc(func() {
		assert.NoError(t, router.Close())
		assert.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
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

package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkDisorder is G1 for messages out of order, through pubsub.Durable: local disorder exchanges
// messages that are at most 100 places apart, random order leaves none.
func BenchmarkDisorder(b *testing.B) {
	db := database(b)
	for _, hands := range []int{inFlight, 4 * inFlight} {
		rates := series{}
		held := map[string]float64{}
		for turn := range pick(7, 1) {
			for _, way := range []string{"random", "local", "least", "least gated", "in order", "without the gate"} {
				run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`, `VACUUM ANALYZE millrace_versions`)
				settleDown(b, db)
				s := &shuffled{way: way, hands: hands, versions: pick(int64(50), 2), done: make(chan struct{})}
				rates.add(way, s.rate(b, db, fmt.Sprint(way, hands, turn, " ")))
				held[way] += 100 * float64(s.held.Load()) / float64(pick(7, 1)*s.messages())
			}
		}
		for way, bound := range map[string]float64{"random": 0.5, "local": 0.85} {
			atLeast(fmt.Sprintf("G1/%s-%d", way, hands), bound).judge(b, rates.over(way, "without the gate"),
				"%.0f/s, of which %.0f%% were held; in order %.0f/s; without the gate %.0f/s", median(rates[way]),
				held[way], median(rates["in order"]), median(rates["without the gate"]))
		}
		for _, way := range []string{"least", "least gated"} {
			atLeast(fmt.Sprintf("G1/local-%d/%s", hands, way), 0.85).judge(b, rates.over(way, "without the gate"), "%.0f/s", median(rates[way]))
		}
	}
}

// BenchmarkTwoProcesses is G1 for two services on one queue of RabbitMQ, each with 64 messages in flight. The messages come in order,
// but half of all predecessors are with the other service.
func BenchmarkTwoProcesses(b *testing.B) {
	r, db := newRabbit(b, "classic"), database(b)
	publisher, err := rabbitmq.NewPublisher(r.config(), rabbitmq.PublisherConfig{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, publisher.Close()) })
	rates, held := series{}, 0.0
	for turn := range pick(7, 1) {
		for _, way := range []string{"two processes", "without the gate"} {
			run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`, `VACUUM ANALYZE millrace_versions`)
			settleDown(b, db)
			s := &shuffled{way: way, versions: pick(int64(100), 2), done: make(chan struct{})}
			s.order(fmt.Sprint("two ", turn, " "))
			require.NoError(b, publisher.Publish(r.queue, s.stream...))
			began := time.Now()
			var stop []func()
			for range 2 {
				sub, err := rabbitmq.NewSubscriber(r.config(), rabbitmq.SubscriberConfig{InFlight: 4 * inFlight})
				require.NoError(b, err)
				stop = append(stop, s.serve(b, db, sub, r.queue))
			}
			<-s.done
			rates.add(way, float64(s.messages())/time.Since(began).Seconds())
			for _, stop := range stop {
				stop()
			}
			held += 100 * float64(s.held.Load()) / float64(pick(7, 1)*s.messages())
		}
	}
	atLeast("G1/two processes", 0.85).judge(b, rates.over("two processes", "without the gate"),
		"%.0f/s, of which %.0f%% were held; without the gate %.0f/s", median(rates["two processes"]), held, median(rates["without the gate"]))
}

// shuffled is a subscriber that delivers every version of every aggregate, so many at once as it
// has hands, and observes what becomes of them.
type shuffled struct {
	way       string
	hands     int
	versions  int64
	batches   bool // instead of one message at a time
	stream    []*message.Message
	completed atomic.Int64
	held      atomic.Int64
	done      chan struct{}
}

func (s *shuffled) messages() int { return aggregates * int(s.versions) }

func (s *shuffled) rate(b *testing.B, db *testdb.DB, prefix string) float64 {
	b.Helper()
	s.order(prefix)
	began := time.Now()
	stop := s.serve(b, db, s, topic)
	<-s.done
	took := time.Since(began)
	stop()
	return float64(s.messages()) / took.Seconds()
}

// order makes the messages.
func (s *shuffled) order(prefix string) {
	for v := range s.versions {
		for a := range aggregates {
			s.stream = append(s.stream, versioned(prefix+strconv.Itoa(a), v+1))
		}
	}
	exchange := func(i, j int) { s.stream[i], s.stream[j] = s.stream[j], s.stream[i] }
	switch s.way {
	case "random":
		rand.Shuffle(len(s.stream), exchange)
	case "local", "least", "least gated":
		for range s.stream {
			i := rand.IntN(len(s.stream))
			exchange(i, min(i+rand.IntN(100), len(s.stream)-1))
		}
	}
}

// serve starts a service.
func (s *shuffled) serve(b *testing.B, db *testdb.DB, source message.Subscriber, topic string) (stop func()) {
	b.Helper()
	store := rig.NewStore(b, db.DB, inbox.Config{Observers: []inbox.Observer{inbox.On(s.observe, inbox.KindCompleted, inbox.KindHeld)}})
	queue := pubsub.Durable{Store: store, Consumer: "billing"}
	if s.batches {
		queue.Concurrency = 2 * s.hands
	}
	sub, err := queue.Decorate(source)
	require.NoError(b, err)
	errs := &failures{}
	router, err := message.NewRouter(message.RouterConfig{}, errs)
	require.NoError(b, err)
	router.AddPlugin(store.Plugin())
	if s.batches {
		router.AddConsumerHandler("billing", topic, sub, s.batch(store))
	} else {
		if s.way == "least" || s.way == "least gated" { // with the gate inside, which finds all in order
			router.AddMiddleware((&leastGate{hands: s.hands, done: map[string]bool{}, waits: map[string]chan struct{}{}}).middleware)
		}
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		switch s.way {
		case "without the gate", "least":
		default:
			router.AddMiddleware(millrace.VersionGate{}.Middleware)
		}
		router.AddConsumerHandler("billing", topic, sub, transfer)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(b.Context())) }()
	<-router.Running() // one that is closed before may wait for its handlers for ever
	return func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-ended)
		require.NoError(b, errs.first())
	}
}

// Subscribe delivers each message until it is acked.
func (s *shuffled) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out, todo := make(chan *message.Message), make(chan *message.Message, len(s.stream))
	for _, msg := range s.stream {
		todo <- msg
	}
	close(todo)
	var hands sync.WaitGroup
	for range s.hands {
		hands.Go(func() {
			for msg := range todo {
				for acked := false; !acked; {
					copied := msg.Copy()
					copied.SetContext(ctx)
					out <- copied
					select {
					case <-copied.Acked():
						acked = true
					case <-copied.Nacked():
					}
				}
			}
		})
	}
	go func() {
		<-ctx.Done()
		hands.Wait()
		close(out)
	}()
	return out, nil
}

// Close does nothing: the subscription ends with its context.
func (*shuffled) Close() error { return nil }

func (s *shuffled) observe(_ context.Context, e inbox.Event) {
	if e.Kind == inbox.KindHeld {
		s.held.Add(1)
	} else if s.completed.Add(1) == int64(s.messages()) {
		close(s.done)
	}
}

// leastGate is the least program that keeps the order of what arrives early: in the memory of one process, without a
// statement. An early message waits outside of any transaction until its predecessor is handled. The last one that does not wait
// never does: what a gate would have to store is handled out of order, as if storing it and delivering it again cost nothing.
type leastGate struct {
	hands   int
	mu      sync.Mutex
	waiting int
	done    map[string]bool
	waits   map[string]chan struct{} // for a message, closed once it is done
}

func (g *leastGate) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		aggregate := msg.Metadata.Get(inbox.AggregateField)
		version, err := strconv.Atoi(msg.Metadata.Get(inbox.VersionField))
		if err != nil {
			return nil, err
		}
		g.await(fmt.Sprint(aggregate, "/", version-1), version)
		produced, err := next(msg)
		g.mu.Lock()
		defer g.mu.Unlock()
		own := fmt.Sprint(aggregate, "/", version)
		g.done[own] = true
		if c := g.waits[own]; c != nil {
			close(c)
			delete(g.waits, own)
		}
		return produced, err
	}
}

func (g *leastGate) await(predecessor string, version int) {
	g.mu.Lock()
	if version == 1 || g.done[predecessor] || g.waiting == g.hands-1 {
		g.mu.Unlock()
		return
	}
	c := make(chan struct{})
	g.waits[predecessor] = c
	g.waiting++
	g.mu.Unlock()
	<-c
	g.mu.Lock()
	g.waiting--
	g.mu.Unlock()
}

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
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkRandomOrder is G1 for messages in no order at all, through pubsub.Durable: most
// are held, and delivered again from the table.
func BenchmarkRandomOrder(b *testing.B) {
	db := database(b)
	rates := series{}
	var held float64
	for turn := range turns() {
		for _, way := range []string{"random", "in order", "without the gate"} {
			run(b, db, `TRUNCATE millrace_claims`)
			settleDown(b, db)
			s := &shuffled{way: way, versions: pick(int64(20), 2), done: make(chan struct{})}
			rates.add(way, s.rate(b, db, fmt.Sprint(way, turn, " ")))
			if way == "random" {
				held += float64(s.held.Load()) / float64(turns()*s.messages())
			}
		}
	}
	tell(fmt.Sprintf("G1/random-order ratio=%.2f no goal (through Durable: random %.0f/s, of which %.0f%% were held; "+
		"in order %.0f/s; without the gate %.0f/s)",
		median(rates.over("random", "without the gate")), median(rates["random"]), 100*held,
		median(rates["in order"]), median(rates["without the gate"])))
	b.ReportMetric(0, "ns/op")
}

// shuffled is a subscriber that delivers every version of every aggregate, sixteen at once,
// and observes what becomes of them.
type shuffled struct {
	way       string
	versions  int64
	stream    []*message.Message
	completed atomic.Int64
	held      atomic.Int64
	done      chan struct{}
}

func (s *shuffled) messages() int { return aggregates * int(s.versions) }

func (s *shuffled) rate(b *testing.B, db *testdb.DB, prefix string) float64 {
	b.Helper()
	for v := range s.versions {
		for a := range aggregates {
			s.stream = append(s.stream, versioned(prefix+strconv.Itoa(a), v+1))
		}
	}
	if s.way == "random" {
		rand.Shuffle(len(s.stream), func(i, j int) { s.stream[i], s.stream[j] = s.stream[j], s.stream[i] })
	}
	store := rig.NewStore(b, db.DB, inbox.Config{Observers: []inbox.Observer{inbox.On(s.observe, inbox.KindCompleted, inbox.KindHeld)}})
	sub, err := pubsub.Durable{Store: store, Consumer: "billing"}.Decorate(s)
	require.NoError(b, err)
	errs := &failures{}
	router, err := message.NewRouter(message.RouterConfig{}, errs)
	require.NoError(b, err)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	if s.way != "without the gate" {
		router.AddMiddleware(millrace.VersionGate{}.Middleware)
	}
	router.AddConsumerHandler("billing", topic, sub, transfer)
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- router.Run(context.WithoutCancel(b.Context())) }()
	<-s.done
	took := time.Since(began)
	require.NoError(b, router.Close())
	require.NoError(b, <-ended)
	require.NoError(b, errs.first())
	return float64(s.messages()) / took.Seconds()
}

// Subscribe delivers each message until it is acked.
func (s *shuffled) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out, todo := make(chan *message.Message), make(chan *message.Message, len(s.stream))
	for _, msg := range s.stream {
		todo <- msg
	}
	close(todo)
	var hands sync.WaitGroup
	for range inFlight {
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

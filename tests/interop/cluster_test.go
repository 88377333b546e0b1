package interop_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// needsCluster skips a test that starts a cluster, unless MILLRACE_TEST_CLUSTER is 1.
func needsCluster(t *testing.T) {
	t.Helper()
	if os.Getenv("MILLRACE_TEST_CLUSTER") != "1" {
		t.Skip("it starts a cluster: make test-cluster")
	}
}

// stream is a pipeline under load: producers, an outbox, a relay, a broker of several nodes, and a
// service with an inbox. Its database stands.
type stream struct {
	*testing.T
	db     *testdb.DB
	broker broker
	events *rig.Events
	pace   pace
}

// endure runs the pipeline while faults happen. faults is given a function that waits until work has gone on.
func endure(t *testing.T, b broker, faults func(goesOn func())) {
	t.Helper()
	const producers, most = 4, 1000 // most messages on their way
	s := &stream{T: t, db: testdb.On(t, "postgres"), broker: b, events: &rig.Events{}}
	s.db.Do(t, `CREATE TABLE effects (id BIGSERIAL PRIMARY KEY, uuid VARCHAR(60), k VARCHAR(20), n INT)`)
	relayUntilTheEnd(t, s.db, b.publisher)
	s.serve()

	var given [producers]int
	var mu sync.Mutex
	total := func() (n int64) {
		mu.Lock()
		defer mu.Unlock()
		for _, g := range given {
			n += int64(g)
		}
		return n
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for k := range producers {
		running.Go(func() {
			out := rig.NewOutbox(t, s.db.DB, outbox.Config{OrderKey: outbox.ByMetadata("key")})
			for n := 1; ; n++ {
				for total()-s.pace.done() > most {
					time.Sleep(10 * time.Millisecond)
				}
				select {
				case <-stop:
					return
				default:
				}
				if !assert.NoError(t, outbox.InTx(t.Context(), s.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
					msg := message.NewMessage(fmt.Sprintf("%d-%d", k, n), []byte(strconv.Itoa(n)))
					msg.Metadata.Set("key", strconv.Itoa(k))
					msg.SetContext(ctx)
					return out.Publish(b.topic, msg) //nolint:contextcheck // the message carries it
				})) {
					return
				}
				mu.Lock()
				given[k] = n
				mu.Unlock()
			}
		})
	}
	faults(func() {
		t.Helper()
		from := s.pace.done()
		rig.Eventually(t, "work goes on", func() bool { return s.pace.done() >= from+200 })
	})
	close(stop)
	running.Wait()
	s.reconcile(int(total()))
}

// serve runs the service until the test ends.
func (s *stream) serve() {
	s.Helper()
	store := rig.NewStore(s, s.db.Open(s).DB, inbox.Config{Observers: []inbox.Observer{s.events}})
	router := rig.NewRouter(s)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	router.AddConsumerHandler("billing", s.broker.topic, s.broker.subscriber(), func(msg *message.Message) error {
		err := rig.Exec(msg.Context(), `INSERT INTO effects (uuid, k, n) VALUES (?, ?, ?)`, msg.UUID, msg.Metadata.Get("key"), string(msg.Payload))
		if err == nil {
			s.pace.step()
		}
		return err
	})
	rig.Run(s, router)
}

func (s *stream) reconcile(n int) {
	s.Helper()
	rig.Eventually(s, "everything has arrived", func() bool {
		return s.db.Count(s, `SELECT COUNT(DISTINCT uuid) FROM effects`) >= n && s.db.Count(s, `SELECT COUNT(*) FROM millrace_outbox`) == 0
	})
	assert.Equal(s, n, s.db.Count(s, `SELECT COUNT(*) FROM effects`), "effects")
	assert.Equal(s, n, s.db.Count(s, `SELECT COUNT(DISTINCT uuid) FROM effects`), "messages that had an effect")
	assert.Zero(s, s.db.Count(s, `SELECT COUNT(*) FROM millrace_messages`), "parked")
	late := s.db.Count(s, `SELECT COUNT(*) FROM (
		SELECT n, LAG(n, 1, 0) OVER (PARTITION BY k ORDER BY id) AS before_it FROM effects) e WHERE n <> before_it + 1`)
	if !s.broker.unordered {
		assert.Zero(s, late, "out of order")
	}
	if s.broker.standstill > 0 {
		assert.LessOrEqual(s, s.pace.longest(), s.broker.standstill, "longest standstill")
	}
	s.Logf("%d messages: lost 0, doubled 0, out of order %d; %d copies recognised, longest standstill %v",
		n, late, s.events.Count("duplicate"), s.pace.longest())
}

// awaitTopic declares what a topic needs, as soon as the cluster lets it.
func awaitTopic(t *testing.T, declare func() error) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, declare()) }, rig.Patience, 500*time.Millisecond)
}

// relayUntilTheEnd runs a relay until t ends.
func relayUntilTheEnd(t *testing.T, db *testdb.DB, to message.Publisher) {
	t.Helper()
	relay, err := outbox.NewRelay(db.DB, to, outbox.RelayConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := rig.Go(func() error { return relay.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
}

// sentInOrder is a publisher that counts messages which come after a later one of their key.
type sentInOrder struct {
	mu   sync.Mutex
	seen map[string]int // by UUID
	last map[string]int // by key
	late int
}

func (s *sentInOrder) Publish(_ string, msgs ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen, s.last = map[string]int{}, map[string]int{}
	}
	for _, msg := range msgs {
		n, err := strconv.Atoi(string(msg.Payload))
		if err != nil {
			return err
		}
		key := msg.Metadata.Get("key")
		if s.seen[msg.UUID]++; s.seen[msg.UUID] == 1 {
			if n < s.last[key] {
				s.late++
			}
			s.last[key] = max(n, s.last[key])
		}
	}
	return nil
}

func (*sentInOrder) Close() error { return nil }

func (s *sentInOrder) distinct() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

func (s *sentInOrder) times() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.seen {
		n += times
	}
	return n
}

// pace counts what was done, and knows the longest pause in between.
type pace struct {
	mu   sync.Mutex
	n    int64
	last time.Time
	most time.Duration
}

func (p *pace) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.n++; p.n > 1 {
		p.most = max(p.most, now.Sub(p.last))
	}
	p.last = now
}

func (p *pace) done() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

func (p *pace) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most.Round(100 * time.Millisecond)
}

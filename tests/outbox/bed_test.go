package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// post is an outbox on a fresh database, and a broker that remembers.
type post struct {
	*testing.T
	db     *testdb.DB
	out    *outbox.Publisher
	broker *memoryBroker
	log    *logbook
}

func newPost(t *testing.T, db *testdb.DB, change ...func(*outbox.Config)) *post {
	t.Helper()
	p := &post{T: t, db: db, broker: newMemoryBroker(), log: &logbook{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(p.log.all(), "\n"))
		}
	})
	p.out = p.publisher(append([]func(*outbox.Config){func(c *outbox.Config) {
		c.OrderKey = outbox.ByMetadata("key")
		c.Standalone = true
	}}, change...)...)
	require.NoError(t, p.out.Migrate(t.Context()))
	return p
}

func (p *post) publisher(change ...func(*outbox.Config)) *outbox.Publisher {
	p.Helper()
	config := outbox.Config{Logger: p.log}
	for _, c := range change {
		c(&config)
	}
	return rig.NewOutbox(p, p.db.DB, config)
}

// relay starts a relay to the post's own broker.
func (p *post) relay(change ...func(*outbox.RelayConfig)) *running {
	p.Helper()
	return p.relayTo(p.broker, change...)
}

// running is a relay at work.
type running struct {
	*outbox.Relay
	tell func()       // to stop
	stop func() error // and wait
}

func start(t testing.TB, relay *outbox.Relay) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	r := &running{Relay: relay, tell: cancel, stop: sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
	t.Cleanup(func() { assert.NoError(t, r.stop()) })
	return r
}

// send stores new messages with an order key in one committed transaction.
func (p *post) send(topic, key string, n int) []string {
	p.Helper()
	return p.store(topic, letters(key, n)...)
}

func (p *post) publishIn(ctx context.Context, topic string, msgs []*message.Message) error {
	for _, m := range msgs {
		m.SetContext(ctx)
	}
	return p.out.Publish(topic, msgs...)
}

func letters(key string, n int) []*message.Message {
	msgs := make([]*message.Message, 0, n)
	for i := range n {
		m := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "%d", i))
		m.Metadata.Set("key", key)
		msgs = append(msgs, m)
	}
	return msgs
}

func uuids(msgs []*message.Message) []string {
	ids := make([]string, 0, len(msgs))
	for _, m := range msgs {
		ids = append(ids, m.UUID)
	}
	return ids
}

// watched is what tests wait for changes of.
type watched struct {
	mu      sync.Mutex
	changed *sync.Cond
}

func newWatched() *watched {
	w := &watched{}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// with makes a change.
func (w *watched) with(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.changed.Broadcast()
}

// until waits for holds to return true.
func (w *watched) until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(rig.Patience)
	late := time.AfterFunc(rig.Patience+time.Second, w.changed.Broadcast)
	defer late.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !holds() {
		if time.Now().After(end) {
			require.FailNow(t, "never: "+what, "the goroutines of this test:\n%s", rig.Where(t))
		}
		w.changed.Wait()
	}
}

// memoryBroker is a publisher that remembers what it confirmed, in order, and refuses what
// it is told to.
type memoryBroker struct {
	*watched
	sent   []*message.Message
	topics []string
	refuse func(topic string, msg *message.Message) error
}

func newMemoryBroker() *memoryBroker { return &memoryBroker{watched: newWatched()} }

var errRefused = errors.New("refused")

// Publish takes messages up to the first that is refused, as most publishers do.
func (b *memoryBroker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.changed.Broadcast()
	for _, m := range msgs {
		if b.refuse != nil {
			if err := b.refuse(topic, m); err != nil {
				return err
			}
		}
		b.sent = append(b.sent, m)
		b.topics = append(b.topics, topic)
	}
	return nil
}

func (b *memoryBroker) Close() error { return nil }

// refusing changes what is refused.
func (b *memoryBroker) refusing(refuse func(topic string, msg *message.Message) error) {
	b.with(func() { b.refuse = refuse })
}

// await waits until what was confirmed satisfies a condition.
func (b *memoryBroker) await(t testing.TB, what string, enough func(uuids []string) bool) {
	t.Helper()
	b.until(t, what, func() bool { return enough(uuids(b.sent)) })
}

func (b *memoryBroker) awaitAll(t testing.TB, ids []string) {
	t.Helper()
	b.until(t, fmt.Sprintf("all %d messages are sent", len(ids)), func() bool { return haveAll(b.sent, ids) })
}

func haveAll(sent []*message.Message, ids []string) bool {
	if len(sent) < len(ids) { // asked after each message, of which there may be thousands
		return false
	}
	counts := countByUUID(sent)
	return !slices.ContainsFunc(ids, func(id string) bool { return counts[id] == 0 })
}

func countByUUID(msgs []*message.Message) map[string]int {
	counts := make(map[string]int, len(msgs))
	for _, m := range msgs {
		counts[m.UUID]++
	}
	return counts
}

// deliveries is how often each message was sent.
func (b *memoryBroker) deliveries() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return countByUUID(b.sent)
}

// firsts is the order of first deliveries, of one key.
func (b *memoryBroker) firsts(key string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[string]bool)
	var ids []string
	for _, m := range b.sent {
		if m.Metadata.Get("key") == key && !seen[m.UUID] {
			seen[m.UUID] = true
			ids = append(ids, m.UUID)
		}
	}
	return ids
}

// rows counts what is left in the outbox.
func (p *post) rows() int {
	p.Helper()
	return p.db.Count(p, `SELECT COUNT(*) FROM millrace_outbox`)
}

// logbook keeps what was logged.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) write(level, msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprint(level, ": ", msg, " ", err, " ", fields))
}

func (l *logbook) Error(msg string, err error, f watermill.LogFields) { l.write("error", msg, err, f) }
func (l *logbook) Info(msg string, f watermill.LogFields)             { l.write("info", msg, nil, f) }
func (l *logbook) Debug(string, watermill.LogFields)                  {}
func (l *logbook) Trace(string, watermill.LogFields)                  {}
func (l *logbook) With(watermill.LogFields) watermill.LoggerAdapter   { return l }

func (l *logbook) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.lines...)
}

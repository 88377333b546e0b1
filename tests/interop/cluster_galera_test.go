package interop_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// galera is three nodes with Millrace's tables, and a pool on each.
type galera struct {
	nodes  []*servers.Server
	db     []*testdb.DB
	stores []*inbox.Store
	events []*rig.Events
}

func newGalera(t *testing.T) *galera {
	t.Helper()
	needsCluster(t)
	g := &galera{nodes: servers.Galera(t, 3)}
	first := testdb.At(t, "mysql", g.nodes[0].DSN())
	for _, n := range g.nodes {
		g.db = append(g.db, first.Open(t, testdb.Pool(20), testdb.Via(n.Addr()), testdb.FrozenHosts(30*time.Second, 10*time.Second),
			testdb.Params("tx_isolation", "'READ-COMMITTED'", "interpolateParams", "true", "wsrep_sync_wait", "7")))
	}
	var migrations sync.WaitGroup
	for _, db := range g.db {
		rig.Eventually(t, "the database is on all nodes", func() bool { return db.PingContext(t.Context()) == nil })
		events := &rig.Events{}
		store := rig.NewStore(t, db.DB, inbox.Config{Observers: []inbox.Observer{events}, Logger: events, WithoutPlugin: true})
		g.stores, g.events = append(g.stores, store), append(g.events, events)
		migrations.Go(func() { assert.NoError(t, store.Migrate(t.Context())) }) // on all nodes at once
	}
	migrations.Wait()
	require.NoError(t, rig.NewOutbox(t, g.db[0].DB, outbox.Config{}).Migrate(t.Context()))
	g.db[0].Do(t, `CREATE TABLE effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, consumer VARCHAR(20), uuid VARCHAR(60), k VARCHAR(20), n INT)`)
	return g
}

// burden prepares for lag.
func (g *galera) burden(t *testing.T) {
	t.Helper()
	g.db[0].Do(t, `CREATE TABLE big (id BIGINT PRIMARY KEY, v VARCHAR(250))`)
	g.db[0].Do(t, `INSERT INTO big SELECT seq, '' FROM seq_1_to_100000`)
}

// lag makes the other nodes fall behind one: they need a while to write what it committed.
func (g *galera) lag(t *testing.T, node int) {
	t.Helper()
	g.db[node].Do(t, `UPDATE big SET v = CONCAT(REPEAT('y', 200), RAND())`)
}

// faults kills and cuts off one node after the other, and waits in between until work goes on.
func (g *galera) faults(t *testing.T, done func() int64) {
	t.Helper()
	goesOn := func() {
		t.Helper()
		from := done()
		rig.Eventually(t, "work goes on", func() bool { return done() >= from+100 })
	}
	goesOn()
	for i := range g.nodes {
		n := g.nodes[len(g.nodes)-1-i]
		n.Kill()
		goesOn()
		n.Start()
		goesOn()
	}
	g.nodes[1].Freeze()
	time.Sleep(8 * time.Second) // the others exclude it after five
	g.nodes[1].Thaw()
	goesOn()
}

// Two copies of each message at once, to two processes on two nodes.
func TestClusterGaleraTwins(t *testing.T) {
	g := newGalera(t)
	g.db[0].Do(t, `CREATE TABLE counters (k VARCHAR(20) PRIMARY KEY, n INT)`)
	const keys = 20
	for k := range keys {
		g.db[0].Do(t, `INSERT INTO counters VALUES (?, 0)`, strconv.Itoa(k))
	}
	published := &sentInOrder{}
	for _, db := range []*testdb.DB{g.db[2], g.db[0]} { // two relays on two nodes
		relayUntilTheEnd(t, db, published)
	}

	var pace pace
	var handlers []message.HandlerFunc
	for i, db := range g.db[:2] {
		out := rig.NewOutbox(t, db.DB, outbox.Config{OrderKey: outbox.ByMetadata("key")})
		handlers = append(handlers, millrace.Inbox{Store: g.stores[i], Consumer: "billing"}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) { return nil, count(msg, out) }))
	}
	var given atomic.Int64
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := given.Add(1)
				msg := message.NewMessage(fmt.Sprintf("message-%d", n), nil)
				msg.Metadata.Set("key", strconv.Itoa(int(n%keys)))
				var copies sync.WaitGroup
				copies.Go(func() { deliverUntilAcked(msg, handlers[0], handlers[1]) })
				copies.Go(func() { deliverUntilAcked(msg, handlers[1], handlers[0]) })
				copies.Wait()
				pace.step()
			}
		})
	}
	g.faults(t, pace.done)
	close(stop)
	workers.Wait()

	n := int(given.Load())
	out := rig.NewOutbox(t, g.db[1].DB, outbox.Config{})
	rig.Eventually(t, "the outbox is empty", func() bool {
		backlog, err := out.Backlog(t.Context(), outbox.BacklogOptions{})
		return err == nil && backlog.Unsent().N == 0
	})
	assert.Equal(t, n, g.db[0].Count(t, `SELECT COUNT(*) FROM effects`), "effects")
	assert.Equal(t, n, g.db[1].Count(t, `SELECT COUNT(DISTINCT uuid) FROM effects`), "messages that had an effect")
	assert.Equal(t, n, g.db[2].Count(t, `SELECT SUM(n) FROM counters`), "counted")
	assert.Zero(t, g.db[0].Count(t, `SELECT COUNT(*) FROM millrace_messages`), "parked or failed")
	assert.Equal(t, n, published.distinct(), "published")
	assert.Zero(t, published.late, "published out of order")
	contended := g.events[0].Count("contention") + g.events[1].Count("contention")
	assert.Positive(t, contended, "the copies never met")
	for _, events := range g.events[:2] {
		for _, e := range events.All("failed") {
			assert.False(t, e.Reason == inbox.ReasonContention && strings.HasPrefix(e.Err.Error(), "commit"), "a COMMIT that was refused is tried again: %v", e.Err)
		}
	}
	t.Logf("%d messages as two copies each: lost 0, doubled 0; %d conflicts tried again, failed runs %d and %d, published %d times, longest standstill %v",
		n, contended, g.events[0].Count("failed"), g.events[1].Count("failed"), published.times(), pace.longest())
}

// count is a handler: it counts the messages of a key and says so in the outbox.
func count(msg *message.Message, out *outbox.Publisher) error {
	key := msg.Metadata.Get("key")
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	if _, err = tx.Exec(`UPDATE counters SET n = n + 1 WHERE k = ?`, key); err != nil {
		return err
	}
	var n int
	if err = tx.Get(&n, `SELECT n FROM counters WHERE k = ?`, key); err != nil {
		return err
	}
	if _, err = tx.Exec(`INSERT INTO effects (consumer, uuid, k, n) VALUES ('billing', ?, ?, ?)`, msg.UUID, key, n); err != nil {
		return err
	}
	told := message.NewMessage(msg.UUID, []byte(strconv.Itoa(n)))
	told.Metadata.Set("key", key)
	told.SetContext(msg.Context())
	return out.Publish("counted", told)
}

// Messages of a key, in order, to one process and then the other; versions of an aggregate, shuffled.
func TestClusterGaleraQueueAndGate(t *testing.T) {
	g := newGalera(t)
	const keys = 8
	var pace pace
	apply := func(consumer string) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			defer pace.step()
			return rig.Exec(msg.Context(), `INSERT INTO effects (consumer, uuid, k, n) VALUES (?, ?, ?, ?)`,
				consumer, msg.UUID, msg.Metadata.Get("key"), msg.Metadata.Get("n"))
		}
	}
	feeds := map[string][]*rig.Feed{}
	for _, store := range g.stores[:2] {
		router := rig.NewRouter(t)
		router.AddPlugin(store.Plugin())
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		for consumer, durable := range map[string]pubsub.Durable{
			"ordered": {Mode: pubsub.StoreFirst, OrderKey: func(msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil }},
			"gated":   {},
		} {
			durable.Store, durable.Consumer, durable.Lease = store, consumer, 15*time.Second
			feed := rig.NewFeed()
			feeds[consumer] = append(feeds[consumer], feed)
			sub, err := durable.Decorate(feed)
			require.NoError(t, err)
			h := router.AddConsumerHandler(consumer, consumer, sub, apply(consumer))
			if consumer == "gated" {
				h.AddMiddleware(millrace.VersionGate{}.Middleware)
			}
		}
		rig.Run(t, router)
	}
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var given [keys]int
	var producers sync.WaitGroup
	for k := range keys {
		producers.Go(func() {
			for n := 1; !stopped(); n += 3 {
				for _, ahead := range []int{0, 1, 2} {
					giveUntilAcked(numbered("ordered", k, n+ahead), feeds["ordered"], n+ahead)
				}
				var three sync.WaitGroup
				for _, ahead := range []int{2, 1, 0} {
					three.Go(func() { giveUntilAcked(numbered("gated", k, n+ahead), feeds["gated"], n+ahead) })
				}
				three.Wait()
				given[k] = n + 2
			}
		})
	}
	g.faults(t, pace.done)
	close(stop)
	producers.Wait()

	n := 0
	for _, last := range given {
		n += 2 * last
	}
	assert.Zero(t, g.db[0].Count(t, `SELECT COUNT(*) FROM millrace_messages WHERE status IN (5, 6)`), "parked")
	end := time.Now().Add(2 * time.Minute)
	for g.db[0].Count(t, `SELECT COUNT(*) FROM millrace_messages`) > 0 && time.Now().Before(end) {
		time.Sleep(100 * time.Millisecond)
	}
	assert.Zero(t, g.db[0].Count(t, `SELECT COUNT(*) FROM millrace_messages`), "left in the table")
	assert.Equal(t, n, g.db[0].Count(t, `SELECT COUNT(*) FROM effects`), "effects")
	assert.Equal(t, n, g.db[1].Count(t, `SELECT COUNT(DISTINCT consumer, uuid) FROM effects`), "messages that had an effect")
	assert.Zero(t, g.db[2].Count(t, `SELECT COUNT(*) FROM (
		SELECT n, COALESCE(LAG(n) OVER (PARTITION BY consumer, k ORDER BY id), 0) AS before_it FROM effects) e WHERE n <> before_it + 1`), "out of order")
	t.Logf("%d messages: lost 0, doubled 0, out of order 0; conflicts %v and %v, longest standstill %v",
		n, g.events[0].Count("contention"), g.events[1].Count("contention"), pace.longest())
}

func numbered(consumer string, k, n int) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("%s-%d-%d", consumer, k, n), nil)
	msg.Metadata = message.Metadata{"key": fmt.Sprint("key-", k), "n": strconv.Itoa(n)}
	if consumer == "gated" {
		maps.Copy(msg.Metadata, message.Metadata{inbox.AggregateField: fmt.Sprint("key-", k), inbox.VersionField: strconv.Itoa(n)})
	}
	return msg
}

// A message is held on one node while another, which is behind, applies its predecessor. One of the
// two must come second, and see the other.
func TestClusterGaleraHoldsBesideItsPredecessor(t *testing.T) {
	g := newGalera(t)
	entered, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	gated := func(i int) message.HandlerFunc {
		rig.Queue(t, g.stores[i], inbox.QueueConfig{Consumer: "gated"})
		return millrace.Inbox{Store: g.stores[i], Consumer: "gated"}.Middleware(millrace.VersionGate{}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) {
				if msg.Metadata.Get("n") == "1" {
					first.Do(func() { close(entered); <-goOn })
				}
				return nil, rig.Exec(msg.Context(), `INSERT INTO effects (consumer, uuid, k, n) VALUES ('gated', ?, '', 0)`, msg.UUID)
			}))
	}
	one, two := gated(0), gated(1)
	g.burden(t)
	deliverUntilAcked(numbered("gated", 0, 3), two)
	applied := rig.Go(func() error { deliverUntilAcked(numbered("gated", 0, 1), one); return nil })
	<-entered
	g.lag(t, 1)
	deliverUntilAcked(numbered("gated", 0, 2), two) // the first node does not see it yet
	close(goOn)
	require.NoError(t, <-applied)
	assert.Equal(t, 1, g.db[0].Count(t, `SELECT COUNT(*) FROM millrace_messages WHERE version = 2 AND status = 1`),
		"version 2 is released")
}

// Messages of a key that are stored through one node and then through another, which is behind,
// have ids in that order.
func TestClusterGaleraIdsFollowTheirCauses(t *testing.T) {
	g := newGalera(t)
	found, err := g.stores[0].Check(t.Context())
	require.NoError(t, err)
	assert.Empty(t, found)
	careless := g.db[0].Open(t, testdb.Params("wsrep_sync_wait", "0"))
	found, err = rig.NewStore(t, careless.DB, inbox.Config{}).Check(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.Equal(t, "wsrep_sync_wait", found[0].Subject)

	g.burden(t)
	for i := range 6 {
		g.lag(t, 0)
		var ids [2]int64
		for j, db := range g.db[:2] {
			require.NoError(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				msg := message.NewMessage(watermill.NewUUID(), nil)
				msg.SetContext(ctx)
				if err := rig.NewOutbox(t, db.DB, outbox.Config{}).Publish("topic", msg); err != nil { //nolint:contextcheck // the message carries it
					return err
				}
				return tx.Get(&ids[j], `SELECT LAST_INSERT_ID()`)
			}))
		}
		require.Less(t, ids[0], ids[1], "round %d", i)
	}
}

// Without the others, a node refuses what it is asked: the inbox waits instead of blaming messages.
func TestClusterGaleraWithoutItsQuorum(t *testing.T) {
	g := newGalera(t)
	var runs atomic.Int64
	h := millrace.Inbox{Store: g.stores[0], Consumer: "billing"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		runs.Add(1)
		return nil, rig.Exec(msg.Context(), `INSERT INTO effects (consumer, uuid) VALUES ('billing', ?)`, msg.UUID)
	})
	deliverUntilAcked(message.NewMessage("before", nil), h)
	before := g.events[0].Count("outage")
	g.nodes[1].Freeze()
	g.nodes[2].Freeze()
	acked := rig.Go(func() error { deliverUntilAcked(message.NewMessage("during", nil), h); return nil })
	rig.Eventually(t, "the inbox notices", func() bool { return g.events[0].Count("outage") > before })
	_, err := h(message.NewMessage("refused", nil))
	require.ErrorIs(t, err, inbox.ErrUnavailable)
	g.nodes[1].Thaw()
	g.nodes[2].Thaw()
	require.NoError(t, <-acked)
	assert.Equal(t, 1, g.db[2].Count(t, `SELECT COUNT(*) FROM effects WHERE uuid = 'during'`))
	assert.Zero(t, g.db[0].Count(t, `SELECT COUNT(*) FROM effects WHERE uuid = 'refused'`))
}

// deliverUntilAcked is a broker that delivers a message to one handler after the other until one succeeds.
func deliverUntilAcked(msg *message.Message, handlers ...message.HandlerFunc) {
	for i := 0; ; i++ {
		if _, err := handlers[i%len(handlers)](msg.Copy()); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// giveUntilAcked does so through a subscriber.
func giveUntilAcked(msg *message.Message, feeds []*rig.Feed, first int) {
	for i := first; ; i++ {
		again := msg.Copy()
		feeds[i%len(feeds)].Give(again)
		select {
		case <-again.Acked():
			return
		case <-again.Nacked():
			time.Sleep(10 * time.Millisecond)
		}
	}
}

package tenants_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// region is a database, with the tables of the service.
type region struct {
	name     string
	db       *testdb.DB
	via      string // where the service reaches it
	down, up func()
	starts   atomic.Int32 // how often the service began to serve it
}

// killed returns a region with a PostgreSQL of its own, which is killed.
func killed(t *testing.T) *region {
	s := servers.Postgres(t)
	return &region{db: testdb.At(t, "postgres", s.DSN()), via: s.Addr(), down: s.Kill, up: s.Start}
}

// cut returns a region from whose PostgreSQL the service is cut off.
func cut(t *testing.T) *region {
	db := testdb.On(t, "postgres")
	wire, _ := servers.Before(t, db.DSN)
	return &region{db: db, via: wire.Addr(), down: wire.Cut, up: wire.Mend}
}

func (r *region) open(t *testing.T) *sqlx.DB { return r.db.Open(t, testdb.Via(r.via)).DB }

// world is RabbitMQ, a queue for each region's orders and for its bills, and a PostgreSQL for each region.
type world struct {
	*testing.T
	prefix  string
	config  amqp.Config
	sent    message.Publisher
	regions []*region
}

func newWorld(t *testing.T, newRegion func(*testing.T) *region) *world {
	t.Helper()
	broker := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if broker == "" {
		testdb.Missing(t, "rabbitmq", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	w := &world{T: t, prefix: "tenants_" + strings.ToLower(rand.Text()) + ".", config: rabbitmq.NewQueueConfig(broker, rabbitmq.Queues{})}
	for _, name := range []string{"eu", "us", "asia"} {
		r := newRegion(t)
		r.name = name
		require.NoError(t, rig.NewStore(t, r.db.DB, inbox.Config{}).Migrate(t.Context()))
		r.db.Do(t, `CREATE TABLE effects (uuid VARCHAR(36), region TEXT)`)
		w.regions = append(w.regions, r)
	}
	topics := []string{w.prefix + "orders"}
	for _, r := range w.regions {
		topics = append(topics, w.orders(r), w.bills(r))
	}
	require.NoError(t, rabbitmq.Declare(w.config, topics...))
	t.Cleanup(func() {
		conn, err := amqp091.Dial(broker)
		if !assert.NoError(t, err) {
			return
		}
		defer func() { _ = conn.Close() }()
		channel, err := conn.Channel()
		for _, topic := range topics {
			if err == nil {
				_, err = channel.QueueDelete(topic, false, false, false)
			}
		}
		assert.NoError(t, err)
	})
	var err error
	w.sent, err = rabbitmq.NewPublisher(w.config, rabbitmq.PublisherConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.sent.Close()) })
	return w
}

func (w *world) orders(r *region) string { return w.prefix + "orders." + r.name }

func (w *world) bills(r *region) string { return w.prefix + "bills." + r.name }

// send publishes n orders of a region's tenant, each twice.
func (w *world) send(r *region, topic string, n int) {
	w.Helper()
	for range n {
		msg := message.NewMessage(watermill.NewUUID(), nil)
		msg.Metadata.Set("region", r.name)
		require.NoError(w, w.sent.Publish(topic, msg, msg.Copy()))
	}
}

// serve runs the service for one region until stopped is closed: a router, and a relay.
func (w *world) serve(r *region, stopped <-chan struct{}) error {
	db := r.open(w.T)
	store := rig.NewStore(w, db, inbox.Config{})
	out := rig.NewOutbox(w, db, outbox.Config{})
	subscriber, err := rabbitmq.NewSubscriber(w.config, rabbitmq.SubscriberConfig{InFlight: 8})
	if err != nil {
		return err
	}
	router := rig.NewRouter(w)
	millrace.Inbox{Store: store, Outbox: out}.AddTo(router)
	router.AddHandler("billing", w.orders(r), subscriber, w.bills(r), w.sent, bill)
	relay, err := outbox.NewRelay(db, w.sent, outbox.RelayConfig{Poll: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	r.starts.Add(1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	defer cancel()
	go func() {
		select {
		case <-stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	relayed := rig.Go(func() error { return relay.Run(ctx) })
	err = router.Run(ctx)
	cancel()
	return errors.Join(err, <-relayed)
}

// bill writes who ordered, and returns the bill.
func bill(msg *message.Message) ([]*message.Message, error) {
	err := rig.Exec(msg.Context(), `INSERT INTO effects (uuid, region) VALUES (?, ?)`, msg.UUID, msg.Metadata.Get("region"))
	return message.Messages{message.NewMessage("bill-"+msg.UUID[5:], nil)}, err
}

// serveAll serves each region by itself, and again after a while if that fails. It is what a service does.
func (w *world) serveAll() {
	stopped := make(chan struct{})
	var running sync.WaitGroup
	for _, r := range w.regions {
		running.Go(func() {
			for {
				if err := w.serve(r, stopped); err != nil {
					w.Logf("%s: %v", r.name, err)
				}
				select {
				case <-stopped:
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
	w.Cleanup(func() {
		close(stopped)
		running.Wait()
	})
}

// settled reports whether a region has n effects, each of a message of its own and of its tenant, and nothing to relay.
func (r *region) settled(w *world, n int) bool {
	var all, own, unsent int
	err := r.db.QueryRowContext(w.Context(), `SELECT COUNT(*), COUNT(DISTINCT uuid) FILTER (WHERE region = $1),
		(SELECT COUNT(*) FROM millrace_outbox) FROM effects`, r.name).Scan(&all, &own, &unsent)
	assert.Equal(w, all, own, "an effect was doubled, or is in the wrong database")
	return err == nil && all == n && unsent == 0
}

// TestADatabaseForEachTenant: each has its topic, router and relay. One that is down from the beginning, and one that
// is killed, hinder no other, and lose and double nothing.
func TestADatabaseForEachTenant(t *testing.T) {
	t.Parallel()
	const half = 40
	w := newWorld(t, killed)
	eu, us, asia := w.regions[0], w.regions[1], w.regions[2]
	us.down()
	w.serveAll()
	for _, r := range w.regions {
		w.send(r, w.orders(r), half)
	}
	for _, r := range []*region{eu, asia} {
		rig.Eventually(t, r.name+" works while us is down", func() bool { return r.settled(w, half) })
	}
	us.up()
	rig.Eventually(t, "us works when it is up", func() bool { return us.settled(w, half) })

	asia.down()
	for _, r := range w.regions {
		w.send(r, w.orders(r), half)
	}
	for _, r := range []*region{eu, us} {
		rig.Eventually(t, r.name+" works while asia is down", func() bool { return r.settled(w, 2*half) })
	}
	asia.up()
	rig.Eventually(t, "asia works again", func() bool { return asia.settled(w, 2*half) })
	assert.Equal(t, int32(1), eu.starts.Load(), "eu was hindered")
	assert.Equal(t, int32(1), asia.starts.Load(), "a router outlives an outage")
	for _, r := range w.regions {
		assert.Equal(t, 2*half, w.billed(r, 2*half), "bills of "+r.name)
	}
}

// billed reads the bills of a region until so many that are not copies are there and no other follows, and counts them.
func (w *world) billed(r *region, expected int) int {
	w.Helper()
	subscriber, err := rabbitmq.NewSubscriber(w.config, rabbitmq.SubscriberConfig{})
	require.NoError(w, err)
	defer func() { assert.NoError(w, subscriber.Close()) }()
	bills, err := subscriber.Subscribe(w.Context(), w.bills(r))
	require.NoError(w, err)
	seen := map[string]bool{}
	take := func(msg *message.Message) {
		seen[msg.UUID] = true
		msg.Ack()
	}
	for len(seen) < expected {
		take(rig.Within(w, bills, "a bill of "+r.name))
	}
	for {
		select {
		case msg := <-bills:
			take(msg)
		case <-time.After(time.Second):
			return len(seen)
		}
	}
}

// TestSeveralDatabasesBehindOneTopic: each Inbox skips what is another's. What is for a database that is down comes
// again until it is up; what no Inbox takes is never handled without a transaction.
func TestSeveralDatabasesBehindOneTopic(t *testing.T) {
	t.Parallel()
	const n = 40
	w := newWorld(t, cut)
	topic := w.prefix + "orders"
	subscriber, err := rabbitmq.NewSubscriber(w.config, rabbitmq.SubscriberConfig{InFlight: 3 * n})
	require.NoError(t, err)
	router := rig.NewRouter(t)
	stores := map[string]*inbox.Store{}
	for _, r := range w.regions {
		stores[r.name] = rig.NewStore(t, r.open(t), inbox.Config{})
	}
	for name, store := range stores {
		elsewhere := func(msg *message.Message) bool { return msg.Metadata.Get("region") != name }
		millrace.Inbox{Store: store, Skip: elsewhere}.AddTo(router)
	}
	var refused atomic.Int32
	router.AddConsumerHandler("billing", topic, subscriber, func(msg *message.Message) error {
		_, err := bill(msg)
		if errors.Is(err, inbox.ErrNoTx) {
			refused.Add(1)
		}
		return err
	})
	rig.Run(t, router)
	off := w.regions[1]
	off.down()
	for range 4 {
		for _, r := range w.regions {
			w.send(r, topic, n/4)
		}
	}
	w.send(&region{name: "nowhere"}, topic, 1)
	for _, r := range []*region{w.regions[0], w.regions[2]} {
		rig.Eventually(t, r.name+" works while the other is down", func() bool { return r.settled(w, n) })
	}
	off.up()
	rig.Eventually(t, "the other works again", func() bool { return off.settled(w, n) })
	rig.Eventually(t, "what is nobody's is refused", func() bool { return refused.Load() > 0 })
}

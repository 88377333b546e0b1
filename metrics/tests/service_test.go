package tests_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// service is what one job does, with a database of its own.
type service struct {
	*testing.T
	db     *testdb.DB
	wire   *servers.Wire // to the database, where it has a server
	store  *inbox.Store
	out    *outbox.Publisher
	relays outbox.RelayConfig
	broker *rig.Publisher
}

func newServices(t *testing.T, registry prometheus.Registerer) map[string]*service {
	t.Helper()
	ledger := testdb.On(t, "postgres")
	wire, _ := servers.Before(t, ledger.DSN)
	jobs := map[string]*service{
		"shop":   newService(t, registry, "shop", testdb.On(t, "sqlite")),
		"ledger": newService(t, registry, "ledger", ledger.Open(t, testdb.Via(wire.Addr()))),
		"mail":   newService(t, registry, "mail", testdb.On(t, "sqlite")),
	}
	jobs["ledger"].wire = wire
	rig.Work(t, jobs["shop"].store)
	rig.Work(t, jobs["ledger"].store)
	jobs["shop"].relays.Lease = 0 // the default: a second is over too soon on a busy machine
	jobs["shop"].relay(jobs["shop"].db.DB)
	return jobs
}

func newService(t *testing.T, registry prometheus.Registerer, job string, db *testdb.DB) *service {
	t.Helper()
	m, err := metrics.NewBuilder(prometheus.WrapRegistererWith(prometheus.Labels{"job": job}, registry),
		metrics.Config{Interval: time.Second, Timeout: rig.Patience, Buckets: []float64{1}})
	require.NoError(t, err)
	s := &service{T: t, db: db, broker: &rig.Publisher{}}
	s.store = rig.NewStore(t, db.DB, inbox.Config{
		WithoutPlugin: true, PurgeInterval: 500 * time.Millisecond, Observers: []inbox.Observer{m.Inbox()},
	})
	s.out = rig.NewOutbox(t, db.DB, outbox.Config{Standalone: true})
	s.relays = outbox.RelayConfig{Lease: time.Second, MaxAttempts: 1, Observers: []outbox.Observer{m.Relay()}}
	require.NoError(t, m.WatchStore(s.store))
	require.NoError(t, m.WatchOutbox(s.out))
	return s
}

// relay runs a relay until it is stopped, and returns when it has its shards.
func (s *service) relay(pool *sqlx.DB) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	relay, err := outbox.NewRelay(pool, s.broker, s.relays)
	require.NoError(s, err)
	ended := rig.Go(func() error { return relay.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		_ = rig.Within(s, ended, "the relay ends") // its database may be gone
	})
	s.Cleanup(stop)
	rig.Eventually(s, "the relay has shards", func() bool {
		layout, err := s.out.Shards(s.Context())
		return err == nil && len(layout.Shards) > 0 && layout.Unowned() == 0
	})
	return stop
}

func (s *service) ops() *admin.Admin { return admin.New(s.store) }

// inbox wraps a handler as middleware.Inbox does.
func (s *service) inbox(consumer string, o inbox.Options, h message.HandlerFunc) message.HandlerFunc {
	return millrace.Inbox{Store: s.store, Consumer: consumer, Options: o}.Middleware(h)
}

// serve runs a handler in a router behind a queue, and returns its source.
func (s *service) serve(d pubsub.Durable, h message.HandlerFunc) *rig.Feed {
	s.Helper()
	feed := rig.NewFeed()
	d.Store = s.store
	sub, err := d.Decorate(feed)
	require.NoError(s, err)
	s.route(d.Consumer, sub, h)
	return feed
}

func (s *service) route(consumer string, from message.Subscriber, h message.HandlerFunc) {
	s.Helper()
	router := rig.NewRouter(s)
	router.AddHandler(consumer, "orders", from, "invoices", s.broker, h)
	rig.Run(s, router)
}

// sends hands msg to a source, and expects that it is acked.
func (s *service) sends(to *rig.Feed, msg *message.Message) {
	s.Helper()
	to.Send(s, msg)
	assert.True(s, rig.Answer(s, msg), "it is acked")
}

func (s *service) handles(h message.HandlerFunc, msg *message.Message) {
	s.Helper()
	_, err := h(msg.Copy())
	require.NoError(s, err)
}

// opens waits until a consumer has one message in a state, and returns it.
func (s *service) opens(consumer string, status admin.Status) (found admin.Message) {
	s.Helper()
	rig.Eventually(s, consumer+" has its message", func() bool {
		all := rig.Find(s, s.store, admin.Filter{Consumer: consumer, Status: status})
		if len(all) == 1 {
			found = all[0]
		}
		return len(all) == 1
	})
	return found
}

// takes is a handler that uses its transaction.
func takes(msg *message.Message) ([]*message.Message, error) {
	_, err := inbox.Tx(msg.Context())
	return nil, err
}

// until returns a handler that fails with err until it is mended.
func until(err error) (h message.HandlerFunc, mend func()) {
	var mended atomic.Bool
	return func(msg *message.Message) ([]*message.Message, error) {
		if mended.Load() {
			return takes(msg)
		}
		return nil, err
	}, func() { mended.Store(true) }
}

// again does something again and again, until it is stopped or the test ends.
func again(t *testing.T, pause time.Duration, what func()) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := rig.Go(func() error {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			what()
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		_ = rig.Within(t, ended, "it stops")
	}
}

// retries has the message of a consumer, which has this state, tried again.
func (s *service) retries(consumer string, of admin.Status) {
	s.Helper()
	n, err := s.ops().RetryAll(s.Context(), admin.Filter{Consumer: consumer, Status: of}, ann, nil, admin.Pace{})
	require.NoError(s, err)
	assert.Equal(s, 1, n)
}

package tests_test

import (
	"context"
	"encoding/hex"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// bed is a service on a fresh database: a store, and a table of effects.
type bed struct {
	*testing.T
	db     *testdb.DB
	store  *inbox.Store
	events *rig.Events
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}}
	b.store = b.newStore(db.DB, inbox.Config{})
	require.NoError(t, b.store.Migrate(t.Context()))
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(700), consumer VARCHAR(300))`)
	return b
}

// newStore returns a store on pool: what a second process, or one with other settings, has.
func (b *bed) newStore(pool *sqlx.DB, config inbox.Config) *inbox.Store {
	b.Helper()
	config.Observers = append(config.Observers, b.events)
	if config.Logger == nil {
		config.Logger = b.events
	}
	return rig.NewStore(b, pool, config)
}

// process returns what another process of the service would have: a pool and a store.
func (b *bed) process(opts ...testdb.Option) *inbox.Store {
	b.Helper()
	return b.newStore(b.db.Open(b, opts...).DB, inbox.Config{})
}

// apply is a handler's effect, written through the transaction.
func apply(ctx context.Context, uuid string) error {
	return rig.Exec(ctx, `INSERT INTO effects (uuid, consumer) VALUES (?, ?)`, hex.EncodeToString([]byte(uuid)), message.HandlerNameFromCtx(ctx))
}

func effect(msg *message.Message) ([]*message.Message, error) {
	return nil, apply(msg.Context(), msg.UUID)
}

// alwaysFails is a handler without an effect, as is effectless.
func alwaysFails(*message.Message) ([]*message.Message, error) { return nil, errBoom }

func effectless(*message.Message) ([]*message.Message, error) { return nil, nil }

// recorded has the failures of an inbox recorded.
func recorded(i *millrace.Inbox) { i.RecordFailures = true }

// effects counts what was committed.
func (b *bed) effects() int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM effects`)
}

func (b *bed) effectsOf(uuid string) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, hex.EncodeToString([]byte(uuid)))
}

func (b *bed) count(query string, args ...any) int {
	b.Helper()
	return b.db.Count(b, query, args...)
}

func (b *bed) exec(query string, args ...any) { b.Helper(); b.db.Do(b, query, args...) }

// patient is an inbox whose claims may take as long as they do on a busy machine.
func (b *bed) patient() millrace.Inbox {
	return millrace.Inbox{Store: b.store, Options: inbox.Options{TwinWait: rig.Patience}}
}

// inbox wraps a handler as a router would.
func (b *bed) inbox(h message.HandlerFunc, change ...func(*millrace.Inbox)) message.HandlerFunc {
	i := b.patient()
	i.Consumer = "billing"
	for _, c := range change {
		c(&i)
	}
	return i.Middleware(h)
}

func on(store *inbox.Store) func(*millrace.Inbox) { return func(i *millrace.Inbox) { i.Store = store } }

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

// again is another delivery of the same message.
func again(msg *message.Message) *message.Message { return msg.Copy() }

// must runs a handler that must not fail.
func must(t testing.TB, h message.HandlerFunc, msg *message.Message) []*message.Message {
	t.Helper()
	out, err := h(msg)
	require.NoError(t, err)
	return out
}

// service is a router with one handler, fed by hand as a broker would.
type service struct {
	*bed
	router    *message.Router
	feed      *rig.Feed
	published *rig.Publisher
	stopped   <-chan error
}

// newService starts a router: h from topic orders to topic invoices. Middlewares are added
// in the order given, the plugin last.
func (b *bed) newService(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	return b.serve(b.router(middlewares...), h)
}

// serve is newService with a router that has its middlewares and plugins.
func (b *bed) serve(router *message.Router, h message.HandlerFunc) *service {
	b.Helper()
	s := &service{bed: b, feed: rig.NewFeed(), published: &rig.Publisher{}}
	router.AddHandler("billing", "orders", s.feed, "invoices", s.published, h)
	s.run(router)
	return s
}

func (b *bed) router(middlewares ...message.HandlerMiddleware) *message.Router {
	b.Helper()
	router := rig.NewRouter(b)
	router.AddMiddleware(middlewares...)
	router.AddPlugin(b.store.Plugin())
	return router
}

func (s *service) run(router *message.Router) {
	s.Helper()
	s.router = router
	s.stopped = rig.Run(s, router)
}

// deliver sends msg and reports whether it was acked.
func (s *service) deliver(msg *message.Message) (acked bool) {
	s.Helper()
	s.feed.Send(s, msg)
	return rig.Answer(s, msg)
}

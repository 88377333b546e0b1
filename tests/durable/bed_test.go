package durable_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const consumer = "billing"

// bed is a database with a store and a table of effects.
type bed struct {
	*testing.T
	db    *testdb.DB
	store *inbox.Store
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db}
	b.store = b.newStore(db.DB)
	require.NoError(t, b.store.Migrate(t.Context()))
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(60) NOT NULL, run BIGINT NOT NULL)`)
	return b
}

func (b *bed) newStore(pool *sqlx.DB) *inbox.Store {
	b.Helper()
	return rig.NewStore(b, pool, inbox.Config{WithoutPlugin: true, PurgeInterval: time.Second})
}

// process returns what another process of the service would have: a pool and a store.
func (b *bed) process() *inbox.Store {
	b.Helper()
	return b.newStore(b.db.Open(b).DB)
}

func newMessage() *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte("payload"))
	msg.Metadata.Set("colour", "blue")
	return msg
}

// effect is a handler's work, in its transaction.
func effect(msg *message.Message) error {
	return rig.Exec(msg.Context(), `INSERT INTO effects (uuid, run) VALUES (?, 1)`, msg.UUID)
}

func (b *bed) count(query string, args ...any) int {
	b.Helper()
	return b.db.Count(b, query, args...)
}

func (b *bed) effects(msg *message.Message) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM effects WHERE uuid = ?`, msg.UUID)
}

func (b *bed) open(status admin.Status) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, status)
}

func (b *bed) rows() int { return b.count(`SELECT COUNT(*) FROM millrace_messages`) }

// quick are settings with which a test need not wait.
func quick(store *inbox.Store) pubsub.Durable {
	return pubsub.Durable{
		Store: store, Consumer: consumer, Poll: 20 * time.Millisecond, Lease: time.Second,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
}

// service is a router on a durable subscriber.
type service struct {
	*bed
	source    *rig.Feed
	router    *message.Router
	published *rig.Publisher
}

// start runs h behind durable. With its store, middleware.Inbox is in between.
func (b *bed) start(durable pubsub.Durable, h message.HandlerFunc, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	s := &service{bed: b, source: rig.NewFeed(), published: &rig.Publisher{}}
	sub, err := durable.Decorate(s.source)
	require.NoError(b, err)
	s.router = rig.NewRouter(b)
	s.router.AddPlugin(durable.Store.Plugin())
	s.router.AddMiddleware(middlewares...)
	s.router.AddHandler(consumer, "orders", sub, "invoices", s.published, h)
	rig.Run(b, s.router)
	return s
}

// inboxed runs h behind durable and middleware.Inbox.
func (b *bed) inboxed(durable pubsub.Durable, h func(*message.Message) error) *service {
	b.Helper()
	return b.start(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) },
		millrace.Inbox{Store: durable.Store}.Middleware)
}

// deliver hands a copy of msg over and reports whether it was acked.
func (s *service) deliver(msg *message.Message) (acked bool) {
	s.Helper()
	c := msg.Copy()
	s.source.Send(s, c)
	return rig.Answer(s, c)
}

func uuids(msgs []*message.Message) []string {
	all := make([]string, len(msgs))
	for i, m := range msgs {
		all[i] = m.UUID
	}
	return all
}

// counter counts the runs of a handler by message.
type counter struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *counter) run(msg *message.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[string]int{}
	}
	c.runs[msg.UUID]++
	return c.runs[msg.UUID]
}

func (c *counter) of(msg *message.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[msg.UUID]
}

package durable_test

import (
	"cmp"
	"fmt"
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
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
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

// inBothModes returns a body for a database of each mode.
func inBothModes(body func(t *testing.T, b *bed, mode pubsub.Mode)) func(*testing.T, *testdb.DB) {
	return func(t *testing.T, db *testdb.DB) {
		for mode, name := range modes {
			t.Run(name, func(t *testing.T) { body(t, newBed(t, testdb.On(t, db.Dialect)), mode) })
		}
	}
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

func newMessages(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage()
	}
	return msgs
}

// stamped is a message that brings a version of an aggregate.
func stamped(aggregate string, version int64) *message.Message {
	msg := newMessage()
	outbox.Stamp(msg, aggregate, version)
	return msg
}

// another is a message with the key of msg, and another payload.
func another(msg *message.Message) *message.Message {
	msg = msg.Copy()
	msg.Payload = []byte("another")
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

func (b *bed) outcomes() int { return b.count(`SELECT COUNT(*) FROM millrace_outcomes`) }

func (b *bed) rows() int { return b.count(`SELECT COUNT(*) FROM millrace_messages`) }

// quick are settings with which a test need not wait, and with which a slow machine charges no attempts: a lease that lapses
// does. A test in which one is to lapse makes it shorter.
func quick(store *inbox.Store) pubsub.Durable {
	return pubsub.Durable{
		Store: store, Consumer: consumer, Poll: 100 * time.Millisecond, Lease: time.Minute,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
}

func storeFirst(store *inbox.Store) pubsub.Durable {
	durable := quick(store)
	durable.Mode = pubsub.StoreFirst
	return durable
}

// countOnPark counts the calls of durable.OnPark.
func countOnPark(durable *pubsub.Durable) *atomic.Int32 {
	var calls atomic.Int32
	durable.OnPark = func(*message.Message, string) error {
		calls.Add(1)
		return nil
	}
	return &calls
}

// service is a router on a durable subscriber.
type service struct {
	*bed
	source    *rig.Feed
	router    *message.Router
	published *rig.Publisher
}

// start runs h behind durable and middlewares.
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

// inboxed runs h behind durable and its middleware.Inbox.
func (b *bed) inboxed(durable pubsub.Durable, h message.NoPublishHandlerFunc, options ...inbox.Options) *service {
	b.Helper()
	return b.start(durable, silent(h), inboxOf(durable, options...))
}

// inboxOf is a middleware.Inbox with the settings that durable has as well, and perhaps others.
func inboxOf(durable pubsub.Durable, options ...inbox.Options) message.HandlerMiddleware {
	in := millrace.Inbox{Store: durable.Store, Key: durable.Key}
	if durable.Consumer != consumer { // by default it is the name of the handler
		in.Consumer = durable.Consumer
	}
	for _, o := range options {
		in.Options = o
	}
	in.Epoch, in.Fingerprint = durable.Epoch, durable.Fingerprint
	in.TwinWait = cmp.Or(in.TwinWait, time.Minute)
	return in.Middleware
}

// invoicing is a handler that has its effect, and returns a message.
func invoicing(msg *message.Message) ([]*message.Message, error) {
	return []*message.Message{message.NewMessage("invoice", nil)}, effect(msg)
}

// decorated runs h in a router whose subscriber decorator is durable.
func (b *bed) decorated(durable pubsub.Durable, h message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	s := &service{bed: b, source: rig.NewFeed(), router: rig.NewRouter(b)}
	s.router.AddPlugin(durable.Store.Plugin())
	s.router.AddSubscriberDecorators(durable.Decorate)
	s.router.AddMiddleware(middlewares...)
	s.router.AddConsumerHandler("orders", "orders", s.source, h)
	rig.Run(b, s.router)
	return s
}

// booming runs a handler that fails so often at each message, and says which run it was.
func (b *bed) booming(durable pubsub.Durable, times int, outside ...message.HandlerMiddleware) *service {
	b.Helper()
	var runs counter
	return b.start(durable, silent(func(msg *message.Message) error {
		if n := runs.run(msg); n <= times {
			return fmt.Errorf("boom %d", n)
		}
		return effect(msg)
	}), append(outside, inboxOf(durable))...)
}

// silent is h, which returns no messages.
func silent(h message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) }
}

// do has h handle msg.
func do(h message.HandlerFunc, msg *message.Message) error {
	_, err := h(msg)
	return err
}

// deliver hands a copy of msg over and reports whether it was acked.
func (s *service) deliver(msg *message.Message) (acked bool) {
	s.Helper()
	c := msg.Copy()
	s.source.Send(s, c)
	return rig.Answer(s, c)
}

// handles delivers msg, and waits until it is handled, and nothing is stored any more.
func (s *service) handles(msg *message.Message) {
	s.Helper()
	assert.True(s, s.deliver(msg))
	rig.Eventually(s, "it is handled", func() bool { return s.effects(msg) == 1 && s.rows() == 0 })
}

// parks delivers msg, and returns its row once it is parked.
func (s *service) parks(msg *message.Message) admin.Message {
	s.Helper()
	assert.True(s, s.deliver(msg))
	rig.Eventually(s, "it is parked", func() bool { return s.open(admin.Parked) == 1 })
	return s.only(s.store, admin.Parked)
}

// takes leases what is due, which is so many messages, and at most ten.
func (b *bed) takes(queue *inbox.Queue, want int) []*inbox.Leased {
	b.Helper()
	taken := rig.Take(b, queue, 10)
	require.Len(b, taken, want)
	return taken
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

// refusesOne is a publisher that fails for the message with a UUID.
type refusesOne string

func (f refusesOne) Publish(_ string, msgs ...*message.Message) error {
	if msgs[0].UUID == string(f) {
		return errBoom
	}
	return nil
}
func (refusesOne) Close() error { return nil }

// refuses is a publisher that fails after it has called a function.
type refuses func()

func (f refuses) Publish(string, ...*message.Message) error { f(); return errBoom }
func (refuses) Close() error                                { return nil }

// leavesThree stops a service of which three messages are stuck.
func (b *bed) leavesThree() {
	b.Helper()
	s, _ := b.stuck(3)
	require.NoError(b, s.router.Close())
	b.unserve()
}

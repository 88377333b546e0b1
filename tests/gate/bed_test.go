package gate_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const consumer = "projection"

// bed is a database with a store, and a table that says what was applied, in which order.
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
	createApplied(t, db)
	return b
}

func createApplied(t testing.TB, db *testdb.DB) {
	t.Helper()
	id := map[string]string{
		"postgres": "BIGSERIAL PRIMARY KEY", "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[db.Dialect]
	db.Do(t, `CREATE TABLE applied (id `+id+`, aggregate VARCHAR(300) NOT NULL, version BIGINT NOT NULL, uuid VARCHAR(60) NOT NULL)`)
}

func (b *bed) newStore(pool *sqlx.DB, config inbox.Config) *inbox.Store {
	b.Helper()
	config.Observers = []inbox.Observer{b.events}
	return rig.NewStore(b, pool, config)
}

// process returns what another process of the service would have: a pool and a store.
func (b *bed) process(opts ...testdb.Option) *inbox.Store {
	b.Helper()
	return b.newStore(b.db.Open(b, opts...).DB, inbox.Config{})
}

// change returns the message that brings an aggregate to a version.
func change(aggregate string, version int64) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf(`{"to":%d}`, version)))
	msg.Metadata.Set(inbox.AggregateField, aggregate)
	msg.Metadata.Set(inbox.VersionField, strconv.FormatInt(version, 10))
	return msg
}

// again is another delivery of the same message.
func again(msg *message.Message) *message.Message { return msg.Copy() }

// apply writes down in the handler's transaction what the message brings.
func apply(msg *message.Message) error {
	version, err := strconv.ParseInt(msg.Metadata.Get(inbox.VersionField), 10, 64)
	if err != nil {
		version = -1
	}
	return rig.Exec(msg.Context(), `INSERT INTO applied (aggregate, version, uuid) VALUES (?, ?, ?)`,
		msg.Metadata.Get(inbox.AggregateField), version, msg.UUID)
}

func handler(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }

// gated wraps a handler as a router would. It waits for other processes as long as the test does.
func (b *bed) gated(store *inbox.Store, gate millrace.VersionGate, h message.HandlerFunc) message.HandlerFunc {
	patient := millrace.Inbox{Store: store, Consumer: consumer, Timeout: 2 * rig.Patience, Options: inbox.Options{TwinWait: rig.Patience}}
	return patient.Middleware(gate.Middleware(h))
}

// queued says that somebody delivers what the store holds, though nobody does.
func (b *bed) queued(store *inbox.Store) {
	b.Helper()
	rig.Queue(b, store, inbox.QueueConfig{Consumer: consumer})
}

// version returns the version of an aggregate.
func (b *bed) version(aggregate string) int64 {
	b.Helper()
	version, err := b.store.Version(context.WithoutCancel(b.Context()), inbox.Aggregate{Consumer: consumer, ID: aggregate})
	require.NoError(b, err)
	return version
}

// mustGap delivers a message that must come too early.
func mustGap(t *testing.T, h message.HandlerFunc, msg *message.Message) (gap inbox.GapError) {
	t.Helper()
	var found *inbox.GapError
	require.ErrorAs(t, rig.Failure(t, h, msg), &found)
	return *found
}

// applied returns the versions of an aggregate in the order in which they were applied.
func (b *bed) applied(aggregate string) []int64 {
	b.Helper()
	versions := []int64{}
	require.NoError(b, b.db.SelectContext(context.WithoutCancel(b.Context()), &versions,
		b.db.Rebind(`SELECT version FROM applied WHERE aggregate = ? ORDER BY id`), aggregate))
	return versions
}

// eventually waits until so many versions of an aggregate were applied, which must be from 1 on, and nothing is left.
func (b *bed) eventually(aggregate string, versions int64) {
	b.Helper()
	rig.Eventually(b, "all are applied", func() bool { return int64(len(b.applied(aggregate))) >= versions })
	assert.Equal(b, upTo(versions), b.applied(aggregate))
	rig.Eventually(b, "nothing is left", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
	b.nothingLeft()
}

// must delivers messages that have to be acked.
func must(t *testing.T, h message.HandlerFunc, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		_, err := h(msg)
		require.NoError(t, err)
	}
}

func (b *bed) count(query string, args ...any) int {
	b.Helper()
	return b.db.Count(b, query, args...)
}

// open counts the messages that the store keeps in a state.
func (b *bed) open(status admin.Status) int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, status)
}

// upTo is 1, 2, … n.
func upTo(n int64) []int64 {
	all := make([]int64, 0, n)
	for v := range n {
		all = append(all, v+1)
	}
	return all
}

// service is a router whose subscriber is durable, fed through a gochannel.
type service struct {
	*bed
	feed   *gochannel.GoChannel
	router *message.Router
}

func (b *bed) service(store *inbox.Store, gate millrace.VersionGate, h message.HandlerFunc) *service {
	b.Helper()
	s := &service{bed: b, feed: gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})}
	sub, err := pubsub.Durable{Store: store, Consumer: consumer, MinBackoff: 10 * time.Millisecond}.Decorate(s.feed)
	require.NoError(b, err)
	s.router = b.newRouter(store, gate)
	s.router.AddConsumerHandler(consumer, "changes", sub, func(msg *message.Message) error {
		_, err := h(msg)
		return err
	})
	rig.Run(b, s.router)
	return s
}

func (s *service) publish(msgs ...*message.Message) {
	s.Helper()
	require.NoError(s, s.feed.Publish("changes", msgs...))
}

// eachServer runs body on the databases that have several writers, which SQLite has not.
func eachServer(t *testing.T, body func(t *testing.T, b *bed)) {
	t.Helper()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			body(t, newBed(t, testdb.On(t, dialect)))
		})
	}
}

// newTunedBed is a bed on a database as [tuned] makes it.
func newTunedBed(t *testing.T, db *testdb.DB) *bed { t.Helper(); return newBed(t, tuned(t, db)) }

// seconds are tests that take seconds and stand beside bodies that run every day: some have their turn each day.
var seconds = []string{
	"TestStandingGap", "TestProcessesAreKilled", "TestTwoProcesses", "TestWakeUpRace",
}

func TestMain(m *testing.M) {
	process.As(shareName, serve)
	testdb.Overlap(4)
	m.Run()
}

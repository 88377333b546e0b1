package original_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const consumer = "billing"

var errBoom = errors.New("boom")

// bed is a database with a store and a table of effects.
type bed struct {
	*testing.T
	db     *testdb.DB
	store  *inbox.Store
	events *rig.Events
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, events: &rig.Events{}}
	b.store = b.newStore()
	require.NoError(t, b.store.Migrate(t.Context()))
	_, err := db.ExecContext(t.Context(), `CREATE TABLE effects (uuid VARCHAR(60) NOT NULL, body VARCHAR(200) NOT NULL)`)
	require.NoError(t, err)
	return b
}

// newStore returns what another process has: a store that remembers nothing.
func (b *bed) newStore() *inbox.Store {
	b.Helper()
	store, err := inbox.NewStore(b.db.DB, inbox.Config{Observers: []inbox.Observer{b.events}, Logger: b.events})
	require.NoError(b, err)
	return store
}

// A locked payload begins with #, and its other bytes are changed.
func lock(text string) message.Payload {
	locked := []byte("#" + text)
	for i := range locked[1:] {
		locked[i+1] ^= 3
	}
	return locked
}

var errNotLocked = errors.New("the payload is not locked")

// unlock is a middleware that decrypts in place, as ciphers do, and says so in the metadata.
func unlock(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if len(msg.Payload) == 0 || msg.Payload[0] != '#' {
			return nil, inbox.Terminal(fmt.Errorf("%w: %q", errNotLocked, msg.Payload))
		}
		msg.Payload[0] = '.'
		for i := range msg.Payload[1:] {
			msg.Payload[i+1] ^= 3
		}
		msg.Metadata.Set("unlocked", "true")
		return h(msg)
	}
}

// unpack is a middleware that puts another payload into the message.
func unpack(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.Payload = slices.Clone(msg.Payload)
		return unlock(h)(msg)
	}
}

// another is a middleware that hands on a message of its own.
func another(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return unlock(h)(msg.CopyWithContext())
	}
}

// envelope is a middleware that hands on what was in the message, which has a UUID of its own.
func envelope(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		inner := message.NewMessageWithContext(msg.Context(), "inner of "+msg.UUID, slices.Clone(msg.Payload))
		inner.Metadata = maps.Clone(msg.Metadata)
		return unlock(h)(inner)
	}
}

// change returns the message that brings aggregate a to a version, with a locked payload.
func change(version int64) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), lock(fmt.Sprintf("secret %d", version)))
	msg.Metadata.Set(inbox.AggregateField, "a")
	msg.Metadata.Set(inbox.VersionField, strconv.FormatInt(version, 10))
	return msg
}

// fresh is another delivery of the same message, whose bytes are its own.
func fresh(msg *message.Message) *message.Message {
	c := msg.Copy()
	c.Payload = slices.Clone(msg.Payload)
	return c
}

// apply writes down in the handler's transaction what the message brings.
func apply(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(msg.Context(), tx.Rebind(`INSERT INTO effects (uuid, body) VALUES (?, ?)`), msg.UUID, string(msg.Payload))
	return err
}

// spoil changes all of a message, in place where it can.
func spoil(msg *message.Message) {
	for i := range msg.Payload {
		msg.Payload[i] = 'x'
	}
	msg.Metadata.Set("spoiled", "true")
	msg.Metadata.Set(inbox.VersionField, "99")
}

func (b *bed) count(query string, args ...any) (n int) {
	b.Helper()
	require.NoError(b, b.db.GetContext(context.WithoutCancel(b.Context()), &n, b.db.Rebind(query), args...))
	return n
}

// effects returns what was applied, in order of its text.
func (b *bed) effects() []string {
	b.Helper()
	bodies := []string{}
	require.NoError(b, b.db.SelectContext(context.WithoutCancel(b.Context()), &bodies, `SELECT body FROM effects ORDER BY body`))
	return bodies
}

func (b *bed) rows() int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_messages`)
}

// storedAs asserts that the only open message of its UUID is want, as it came.
func (b *bed) storedAs(status admin.Status, want *message.Message) {
	b.Helper()
	found, err := admin.New(b.store).Find(context.WithoutCancel(b.Context()), admin.Filter{Consumer: consumer}, 0, 100)
	require.NoError(b, err)
	found = slices.DeleteFunc(found, func(m admin.Message) bool { return m.UUID != want.UUID || m.Status != status })
	require.Len(b, found, 1, "messages that are %v", status)
	same(b, want, &message.Message{UUID: found[0].UUID, Payload: found[0].Payload, Metadata: found[0].Metadata})
}

// same asserts that two messages say the same.
func same(t testing.TB, want, got *message.Message) {
	t.Helper()
	assert.Equal(t, want.UUID, got.UUID)
	assert.Equal(t, string(want.Payload), string(got.Payload))
	if !maps.Equal(want.Metadata, got.Metadata) {
		assert.Equal(t, want.Metadata, got.Metadata)
	}
}

func (b *bed) noCollision() {
	b.Helper()
	assert.Zero(b, b.events.Count("collision"), "a copy is no collision")
}

// service is a router with the plugin and one handler.
type service struct {
	*bed
	source    *rig.Feed
	published *rig.Publisher
}

// durable are settings with which a test need not wait.
func (b *bed) durable(mode pubsub.Mode) *pubsub.Durable {
	return &pubsub.Durable{
		Store: b.store, Consumer: consumer, Mode: mode, Poll: 10 * time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
}

// serve runs h in a router behind middlewares, and behind durable unless it is nil.
func (b *bed) serve(durable *pubsub.Durable, h message.HandlerFunc, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	s := &service{bed: b, source: rig.NewFeed(), published: &rig.Publisher{}}
	var sub message.Subscriber = s.source
	router := rig.NewRouter(b)
	if durable != nil {
		decorated, err := durable.Decorate(sub)
		require.NoError(b, err)
		sub = decorated
	}
	router.AddPlugin(b.store.Plugin())
	router.AddMiddleware(middlewares...)
	router.AddHandler(consumer, "changes", sub, "made", s.published, h)
	rig.Run(b, router)
	return s
}

// deliver hands copies of msgs over, one after the other, and asserts that they are acked.
func (s *service) deliver(msgs ...*message.Message) {
	s.Helper()
	for _, msg := range msgs {
		c := fresh(msg)
		s.source.Send(s, c)
		assert.True(s, rig.Answer(s, c), "the message is acked")
	}
}

func (b *bed) inbox(change ...func(*millrace.Inbox)) message.HandlerMiddleware {
	i := millrace.Inbox{Store: b.store, Consumer: consumer}
	for _, c := range change {
		c(&i)
	}
	return i.Middleware
}

// chain wraps h as a router would.
func chain(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) message.HandlerFunc {
	for _, m := range slices.Backward(middlewares) {
		h = m(h)
	}
	return h
}

// seen keeps what a handler was given.
type seen struct {
	mu   sync.Mutex
	runs []*message.Message
}

// add keeps msg and returns how often it has come.
func (s *seen) add(msg *message.Message) (times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, fresh(msg))
	for _, m := range s.runs {
		if m.UUID == msg.UUID {
			times++
		}
	}
	return times
}

package tests_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// inputBodies: what is wrong gets a clear error that names the way out.
var inputBodies = []testdb.Body{
	{Name: "no consumer name", Why: "an empty name is an error, never a shared memory", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		rig.MustFail(t, b.patient().Middleware(effect), newMessage("x"), "needs a name")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "two handlers under one consumer", Why: "they would take each other's messages for duplicates", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		router := b.router(millrace.Inbox{Store: b.store, Consumer: "shared"}.Middleware)
		one, two := rig.NewFeed(), rig.NewFeed()
		handle := func(msg *message.Message) error { _, err := effect(msg); return err }
		router.AddConsumerHandler("one", "orders", one, handle)
		router.AddConsumerHandler("two", "returns", two, handle)
		s := &service{bed: b, feed: one}
		s.run(router)
		assert.True(t, s.deliver(newMessage("x")))
		refused := newMessage("x")
		two.Send(t, refused)
		assert.False(t, rig.Answer(s, refused))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "no key", Why: "the message is kept with what it lacks, and not handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), message.NewMessage("", nil))
		must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("id"); i.Consumer = "m" }), newMessage("x"))
		found := rig.Find(t, b.store, admin.Filter{Status: admin.FailedTerminal})
		require.Len(t, found, 2)
		assert.Contains(t, found[0].Reason, "no UUID")
		assert.Contains(t, found[1].Reason, `no "id"`)
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "nil payload and nil metadata", Why: "both exist, and both are handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := message.NewMessage("nil", nil)
		msg.Metadata = nil
		must(t, b.inbox(effect), msg)
		must(t, b.inbox(effect, on(b.process())), message.NewMessage("nil", []byte{}))
		assert.Equal(t, 1, b.effects())
		must(t, b.inbox(effect), message.NewMessage("nil", []byte("x")))
		nilAgain := message.NewMessage("other", []byte("y"))
		must(t, b.inbox(effect), nilAgain)
		parkedNil := message.NewMessage("other", nil)
		parkedNil.Metadata = nil
		must(t, b.inbox(effect), parkedNil)
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 2)
		assert.Nil(t, parked[1].Metadata)
	})},
	{Name: "missing tables", Why: "the error says how to make them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.newStore(b.db.DB, inbox.Config{TablePrefix: "elsewhere_"})
		rig.MustFail(t, b.inbox(effect, on(other)), newMessage("x"), inbox.ErrNotMigrated, "Store.Migrate")
		_, err := admin.New(other).Story(t.Context(), "x")
		require.ErrorIs(t, err, inbox.ErrNotMigrated)
	})},
	{Name: "a closed database", Why: "an error that says so, after a pause instead of a nack storm", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := b.db.Open(t)
		h := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})))
		must(t, h, newMessage("x"))
		require.NoError(t, pool.Close())
		rig.MustFail(t, h, newMessage("x"), "closed")
	})},
	{Name: "a read-only database", Why: "the error asks for the primary", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.newStore(b.db.ReadOnly(t).DB, inbox.Config{})
		rig.MustFail(t, b.inbox(effect, on(store)), newMessage("x"), inbox.ErrReadOnly, "primary")
	})},
	{Name: "a message that is already acked", Why: "InstantAck outside: a failure would lose it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		msg.Ack()
		rig.MustFail(t, b.inbox(effect), msg, "InstantAck")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "a closed store", Why: "it takes no more deliveries", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		require.NoError(t, b.store.Close(t.Context()))
		rig.MustFail(t, b.inbox(effect), newMessage("x"), inbox.ErrClosed)
	})},
	{Name: "wrong settings", Why: "all at once, on every message, and never a silent pass", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, func(i *millrace.Inbox) {
			i.Retention, i.Timeout, i.Epoch, i.MaxInFlight = 1, -1, -1, -1
			i.Consumer = strings.Repeat("n", 300)
		})
		for range 2 {
			_, err := h(newMessage("x"))
			for _, name := range []string{"Retention", "Timeout", "Epoch", "MaxInFlight", "Consumer"} {
				require.ErrorContains(t, err, name)
			}
		}
		assert.Len(t, b.events.Logs(), 1)
		rig.MustFail(t, millrace.Inbox{}.Middleware(effect), newMessage("x"), "a Store is required")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "the inbox twice on one handler", Why: "it would wait for itself", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = "inner" }))
		rig.MustFail(t, h, newMessage("x"), "twice")
	})},
	{Name: "Skip", Why: "it lets a message through as if we were not there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		ran := 0
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			ran++
			_, err := inbox.Tx(msg.Context())
			if !errors.Is(err, inbox.ErrNoTx) {
				return nil, errors.New("a skipped message has a transaction")
			}
			return nil, nil
		}, func(i *millrace.Inbox) { i.Skip = func(*message.Message) bool { return true } })
		msg := newMessage("x")
		must(t, h, msg)
		must(t, h, msg)
		assert.Equal(t, 2, ran)
	})},
	{Name: "a driver by another name", Why: "then the server itself says what it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		renamed := sqlx.NewDb(b.db.DB.DB, "tracing-driver")
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			_, err := inbox.Tx(msg.Context())
			return nil, err
		}, on(b.newStore(renamed, inbox.Config{})))
		msg := newMessage("x")
		must(t, h, again(msg))
		must(t, h, again(msg))
		assert.Equal(t, 1, b.events.Count("completed"))
	})},
}

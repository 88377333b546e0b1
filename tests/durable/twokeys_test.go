package durable_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAMessageWithTwoKeys: one in pubsub.Durable, and another one or none in middleware.Inbox. It would be
// handled twice, and it comes back as often as it is refused.
func TestAMessageWithTwoKeys(t *testing.T) {
	testdb.Conformance(t, twoKeysBodies)
}

// enveloped is a middleware that hands on what is in the message, which has a UUID of its own.
func enveloped(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return h(message.NewMessageWithContext(msg.Context(), "inner of "+msg.UUID, msg.Payload))
	}
}

// cut is a middleware that changes the payload of a message that it hands on.
func cut(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		c := msg.CopyWithContext()
		c.Payload = c.Payload[1:]
		return h(c)
	}
}

func unprintable(*message.Message) ([]byte, error) { return nil, errors.New("boom") }

var twoKeysBodies = []testdb.Body{
	{Name: "a UUID in an envelope", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.Key{}, millrace.Inbox{}, enveloped, `it is "inner of bad" in middleware.Inbox, but was "bad"`)
	}},
	{Name: "a payload that is cut", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.ByPayload(), millrace.Inbox{Key: inbox.ByPayload()}, cut, "A middleware between them changed it")
	}},
	{Name: "a key that only Durable finds", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(byOrder, millrace.Inbox{Key: byOrder}, cut, "give both the same Key and Fingerprint")
	}},
	{Name: "a fingerprint that only Durable finds", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.Key{}, millrace.Inbox{Options: inbox.Options{Fingerprint: unprintable}}, nil, "give both the same Key and Fingerprint")
	}},
	{Name: "another key than it was handled with", Why: "what the handler produced goes out, and it does not run again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		makes := func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("invoice", nil)}, effect(msg)
		}
		before := b.start(quick(b.store), makes, millrace.Inbox{Store: b.store}.Middleware)
		before.published.FailWith(errors.New("the broker is away"))
		msg := newMessage()
		before.deliver(msg)
		require.NoError(t, before.router.Close())
		b.db.Do(t, `DELETE FROM millrace_messages`) // as if the process had died before it was stored
		require.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))

		store := b.process()
		after := b.start(quick(store), makes, enveloped, millrace.Inbox{Store: store}.Middleware)
		assert.True(t, after.deliver(msg))
		rig.Eventually(t, "the outcome is out", func() bool {
			return b.rows() == 0 && b.count(`SELECT COUNT(*) FROM millrace_outcomes`) == 0
		})
		assert.Equal(t, []string{"invoice"}, uuids(after.published.Messages()))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a key that a transaction holds for long", Why: "a copy waits for TwinWait at most, and others are handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // its writers wait for each other anyway
		}
		s := b.start(quick(b.store), func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) },
			enveloped, millrace.Inbox{Store: b.store, Options: inbox.Options{TwinWait: 300 * time.Millisecond}}.Middleware)
		msg := newMessage()
		assert.True(t, s.deliver(msg), "it is kept, and its claim is open")
		held, err := b.db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer held.Rollback() //nolint:errcheck // or it is committed
		_, err = held.ExecContext(t.Context(), `UPDATE millrace_claims SET token = token`)
		require.NoError(t, err)
		assert.False(t, s.deliver(msg), "a copy, which its source brings again")
		require.NoError(t, held.Rollback())
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, b.rows())
	})},
}

// keepsTwoKeys delivers a message that has one key in Durable, and another one, or none, in Inbox.
func (b *bed) keepsTwoKeys(key inbox.Key, in millrace.Inbox, outside message.HandlerMiddleware, because string) {
	b.Helper()
	events := &rig.Events{}
	store, err := inbox.NewStore(b.db.DB, inbox.Config{Observers: []inbox.Observer{events}})
	require.NoError(b, err)
	durable := quick(store)
	durable.Key = key
	var told atomic.Int32
	durable.OnPark = func(*message.Message, string) error {
		told.Add(1)
		return nil
	}
	in.Store = store
	middlewares := []message.HandlerMiddleware{in.Middleware}
	if outside != nil {
		middlewares = []message.HandlerMiddleware{outside, in.Middleware}
	}
	s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) }, middlewares...)
	bad := order("bad", 1)
	bad.Metadata.Set("colour", "blue")
	for range 3 {
		assert.True(b, s.deliver(bad), "acked")
	}
	found := b.find(admin.Filter{Status: admin.FailedTerminal})
	require.Len(b, found, 1)
	assert.Equal(b, 1, b.rows())
	assert.Equal(b, "bad", found[0].UUID)
	assert.Equal(b, string(bad.Payload), string(found[0].Payload))
	assert.Equal(b, bad.Metadata, found[0].Metadata)
	assert.Contains(b, found[0].Reason, "no key: ")
	assert.Contains(b, found[0].Reason, because)
	assert.Contains(b, found[0].Reason, "then try the message again")
	assert.Equal(b, 1, events.Count("parked"))
	assert.Equal(b, inbox.ReasonNoKey, events.Last("parked").Reason)
	assert.EqualValues(b, 1, told.Load(), "OnPark")
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM effects`))

	rig.Eventually(b, "a queue serves it", func() bool { return admin.New(store).Retry(b.Context(), found[0].ID, ada, nil) == nil })
	rig.Eventually(b, "it is handled by the key of Durable", func() bool { return b.rows() == 0 })
	assert.True(b, s.deliver(bad), "a copy of what was handled")
	assert.Equal(b, 1, b.count(`SELECT COUNT(*) FROM effects`))
	assert.Zero(b, b.rows())
	assert.Equal(b, 1, events.Count("parked"))
}

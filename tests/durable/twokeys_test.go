package durable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
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

func unprintable(*message.Message) ([]byte, error) { return nil, errBoom }

var twoKeysBodies = []testdb.Body{
	{Name: "a UUID in an envelope", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.Key{}, millrace.Inbox{}, `it is "inner of bad" in middleware.Inbox, but was "bad"`, enveloped)
	}},
	{Name: "a payload that is cut", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.ByPayload(), millrace.Inbox{Key: inbox.ByPayload()}, "A middleware between them changed it", cut)
	}},
	{Name: "a key that only Durable finds", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(byOrder, millrace.Inbox{Key: byOrder}, "give both the same Key and Fingerprint", cut)
	}},
	{Name: "a fingerprint that only Durable finds", Why: "an operator decides, once the wiring is mended", Run: func(t *testing.T, db *testdb.DB) {
		newBed(t, db).keepsTwoKeys(inbox.Key{}, millrace.Inbox{Options: inbox.Options{Fingerprint: unprintable}}, "give both the same Key and Fingerprint")
	}},
	{Name: "another key than it was handled with", Why: "what the handler produced goes out, and it does not run again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		before := b.start(quick(b.store), invoicing, millrace.Inbox{Store: b.store}.Middleware)
		before.published.FailWith(errBoom)
		msg := newMessage()
		before.deliver(msg)
		require.NoError(t, before.router.Close())
		b.db.Do(t, `DELETE FROM millrace_messages`) // as if the process had died before it was stored
		require.Equal(t, 1, b.outcomes())

		store := b.process()
		after := b.start(quick(store), invoicing, enveloped, millrace.Inbox{Store: store}.Middleware)
		assert.True(t, after.deliver(msg))
		rig.Eventually(t, "the outcome is out", func() bool { return b.rows() == 0 && b.outcomes() == 0 })
		assert.Equal(t, []string{"invoice"}, uuids(after.published.Messages()))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a key that a transaction holds for long", Why: "a copy waits for TwinWait at most, and others are handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // its writers wait for each other anyway
		}
		s := b.start(quick(b.store), silent(effect),
			enveloped, millrace.Inbox{Store: b.store, Options: inbox.Options{TwinWait: 3 * time.Second}}.Middleware)
		msg := newMessage()
		rig.Eventually(t, "it is kept, and its claim is open", func() bool { return s.deliver(msg) })
		held, err := b.db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer held.Rollback() //nolint:errcheck // or it is committed
		_, err = held.ExecContext(t.Context(), `UPDATE millrace_claims SET token = token`)
		require.NoError(t, err)
		assert.False(t, s.deliver(msg), "a copy, which its source brings again")
		require.NoError(t, held.Rollback())
		rig.Eventually(t, "a copy is acked", func() bool { return s.deliver(msg) }) // a busy server answers after TwinWait
		assert.Equal(t, 1, b.rows())
	})},
}

// keepsTwoKeys delivers a message that has one key in Durable, and another one, or none, in Inbox.
func (b *bed) keepsTwoKeys(key inbox.Key, in millrace.Inbox, because string, outside ...message.HandlerMiddleware) {
	b.Helper()
	k := b.keyless(keylessConfig{key: key, inbox: &in, outside: outside})
	bad := order("bad", 1)
	bad.Metadata.Set("colour", "blue")
	for range 3 {
		assert.True(b, k.deliver(bad), "acked")
	}
	found := k.kept(bad, because)
	assert.Equal(b, 1, b.rows())
	assert.Equal(b, bad.Metadata, found.Metadata)
	assert.Contains(b, found.Reason, "then try the message again")
	assert.Zero(b, b.count(`SELECT COUNT(*) FROM effects`))

	rig.Eventually(b, "a queue serves it", func() bool { return admin.New(k.store).Retry(b.Context(), found.ID, ada, nil) == nil })
	rig.Eventually(b, "it is handled by the key of Durable", func() bool { return b.rows() == 0 })
	assert.True(b, k.deliver(bad), "a copy of what was handled")
	assert.Equal(b, 1, b.count(`SELECT COUNT(*) FROM effects`))
	assert.Zero(b, b.rows())
	assert.Equal(b, 1, k.events.Count("parked"))
}

// TestARefusedMessageComesAgainAfterPauses: gochannel delivers again at once what was nacked.
func TestARefusedMessageComesAgainAfterPauses(t *testing.T) {
	for name, c := range map[string]struct {
		before *inbox.Key // of the consumer
		key    inbox.Key  // of Inbox
		text   string
	}{
		"a consumer whose key changed":                         {before: &byOrder, text: "the consumer's key changed"},
		"a key that only Durable finds, with a key of its own": {before: &byOrder, key: byOrder, text: "the consumer's key changed"},
		"a key that cannot be looked for": {
			key: inbox.ByFunc("claim check", func(*message.Message) (string, error) {
				return "", fmt.Errorf("the store of large payloads: %w", inbox.ErrUnavailable)
			}),
			text: "the store of large payloads",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, "sqlite"))
			if c.before != nil {
				_, err := millrace.Inbox{Store: b.store, Consumer: consumer, Key: *c.before}.Middleware(
					silent(func(*message.Message) error { return nil }))(order("good", 1))
				require.NoError(t, err)
			}
			source := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			sub, err := pubsub.Durable{Store: b.store, Consumer: consumer}.Decorate(source)
			require.NoError(t, err)
			router := rig.NewRouter(t)
			router.AddPlugin(b.store.Plugin())
			refused := make(chan error, 1000)
			router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					out, err := h(msg)
					refused <- err
					return out, err
				}
			})
			router.AddMiddleware(millrace.Inbox{Store: b.store, Key: c.key}.Middleware)
			router.AddConsumerHandler(consumer, "orders", sub, effect)
			rig.Run(t, router)
			began := time.Now()
			require.NoError(t, source.Publish("orders", broken("bad")))
			for range 5 {
				require.ErrorContains(t, <-refused, c.text)
			}
			assert.Greater(t, time.Since(began), 500*time.Millisecond, "after pauses that grow")
			assert.Zero(t, b.count(`SELECT COUNT(*) FROM effects`))
		})
	}
}

package durable_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMessagesWithoutAKey(t *testing.T) {
	testdb.Conformance(t, keylessBodies)
}

// keyless is a service whose key is in the payload.
type keyless struct {
	*service
	events *rig.Events
	parked *atomic.Int32 // calls of OnPark
}

type keylessConfig struct {
	mode        pubsub.Mode
	key         inbox.Key
	fingerprint func(*message.Message) ([]byte, error)
	order       func(*message.Message) (string, error)
	outside     []message.HandlerMiddleware
	inbox       *millrace.Inbox // if it is not that of the queue
}

func (b *bed) keyless(c keylessConfig) *keyless {
	b.Helper()
	k := &keyless{events: &rig.Events{}}
	store := rig.NewStore(b, b.db.DB, inbox.Config{Observers: []inbox.Observer{k.events}, AllowPayloadChange: true})
	durable := quick(store)
	durable.Mode, durable.Key, durable.Fingerprint, durable.OrderKey = c.mode, c.key, c.fingerprint, c.order
	k.parked = countOnPark(&durable)
	in := inboxOf(durable)
	if c.inbox != nil {
		c.inbox.Store = store
		in = c.inbox.Middleware
	}
	k.service = b.start(durable, silent(effect), append(c.outside, in)...)
	k.store = store
	return k
}

func order(uuid string, id int) *message.Message {
	return message.NewMessage(uuid, fmt.Appendf(nil, `{"order_id":%d}`, id))
}

func broken(uuid string) *message.Message { return message.NewMessage(uuid, []byte("{not json")) }

// stops delivers what has no key, and others, and a copy.
func (k *keyless) stops(bad *message.Message, why string) {
	k.Helper()
	assert.True(k, k.deliver(bad), "acked")
	for n := range 5 {
		assert.True(k, k.deliver(order(fmt.Sprintf("good %d", n), n)))
	}
	rig.Eventually(k, "others are handled", func() bool { return k.count(`SELECT COUNT(*) FROM effects`) == 5 })
	again := bad.Copy()
	again.Metadata.Set(redelivered, "true")
	assert.True(k, k.deliver(again), "a copy of it")
	rig.Eventually(k, "nothing is left to be done", func() bool { return k.rows() == 1 })
	assert.Contains(k, k.kept(bad, why).MessageID, "keyless:")
}

// kept expects that bad, which has no key, waits for an operator, and returns its row.
func (k *keyless) kept(bad *message.Message, why string) admin.Message {
	k.Helper()
	found := k.only(k.store, admin.FailedTerminal)
	assert.Equal(k, string(bad.Payload), string(found.Payload))
	assert.Equal(k, bad.UUID, found.UUID)
	assert.Contains(k, found.Reason, "no key: ")
	assert.Contains(k, found.Reason, why)
	assert.Equal(k, 1, k.events.Count("parked"))
	assert.Equal(k, inbox.ReasonNoKey, k.events.Last("parked").Reason)
	assert.EqualValues(k, 1, k.parked.Load(), "OnPark")
	return found
}

var byOrder = inbox.ByJSON("order_id")

var panicking = inbox.ByFunc("panics", func(msg *message.Message) (string, error) {
	if msg.UUID == "bad" {
		panic("boom")
	}
	return msg.UUID, nil
})

func fingerprint(of func() error) func(*message.Message) ([]byte, error) {
	return func(msg *message.Message) ([]byte, error) {
		if msg.UUID == "bad" {
			return nil, of()
		}
		return msg.Payload, nil
	}
}

func panics(*message.Message) (string, error) { panic("boom") }

var keylessBodies = []testdb.Body{
	keylessBody("no key, stored on failure", "it is kept, and stops nobody", keylessConfig{key: byOrder}, "bad", "invalid character"),
	keylessBody("no key, stored first", "it is kept, and stops nobody",
		keylessConfig{key: byOrder, mode: pubsub.StoreFirst}, "bad", "invalid character"),
	keylessBody("a key function that panics, stored on failure", "it has found none", keylessConfig{key: panicking}, "bad", "panic: boom"),
	keylessBody("a key function that panics, stored first", "it has found none",
		keylessConfig{key: panicking, mode: pubsub.StoreFirst}, "bad", "panic: boom"),
	keylessBody("an empty UUID", "by default there is no key then", keylessConfig{}, "", "no UUID"),
	keylessBody("a fingerprint that cannot be had", "it cannot be compared with a copy",
		keylessConfig{fingerprint: fingerprint(func() error { return errBoom })}, "bad", "boom"),
	keylessBody("a fingerprint that panics", "it cannot be compared with a copy",
		keylessConfig{fingerprint: fingerprint(func() error { panic("boom") }), mode: pubsub.StoreFirst}, "bad", "panic: boom"),
	{Name: "neither a key nor a UUID", Why: "the metadata tells messages of one payload apart", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, name := range modes {
			before := b.rows()
			k := b.keyless(keylessConfig{mode: mode, key: inbox.ByMetadata("order_id")})
			for n, flag := range []string{"", "", "true"} {
				msg := message.NewMessage("", []byte(name))
				msg.Metadata.Set("orderId", fmt.Sprint(n%2))
				msg.Metadata.Set(redelivered, flag)
				assert.True(t, k.deliver(msg), name)
			}
			assert.Equal(t, before+2, b.rows(), name)
			require.NoError(t, k.router.Close())
		}
	})},
	{Name: "no key, and a poison queue outside", Why: "it is kept all the same", Run: func(t *testing.T, db *testdb.DB) {
		poison := &rig.Publisher{}
		mw, err := middleware.PoisonQueue(poison, "poison")
		require.NoError(t, err)
		newBed(t, db).keyless(keylessConfig{key: byOrder, outside: []message.HandlerMiddleware{mw}}).stops(broken("bad"), "invalid character")
		assert.Empty(t, poison.Messages())
	}},
	{Name: "an order key that cannot be had", Why: "it stands in no line, and stops none", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		k := b.keyless(keylessConfig{mode: pubsub.StoreFirst, order: func(msg *message.Message) (string, error) {
			if msg.UUID == "bad" {
				return panics(msg)
			}
			return "key", nil
		}})
		assert.True(t, k.deliver(broken("bad")))
		assert.True(t, k.deliver(broken("good")))
		rig.Eventually(b, "the other is handled", func() bool { return b.rows() == 1 && b.effects(broken("good")) == 1 })
		found := b.only(b.store, admin.FailedTerminal)
		assert.Equal(t, "bad", found.MessageID, "it has a key")
		rig.Eventually(b, "a queue serves it", func() bool { return admin.New(k.store).Retry(t.Context(), found.ID, ada, nil) == nil })
		rig.Eventually(b, "it is handled, in no order", func() bool { return b.rows() == 0 && b.effects(broken("bad")) == 1 })
	})},
	{Name: "a key that is looked up where nobody answers", Why: "the message is not to blame: it goes back to its source", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, name := range modes {
			for _, cause := range []error{driver.ErrBadConn, context.DeadlineExceeded} {
				var down atomic.Bool
				down.Store(true)
				k := b.keyless(keylessConfig{mode: mode, key: inbox.ByFunc("looked up", func(msg *message.Message) (string, error) {
					if down.Load() {
						return "", fmt.Errorf("look the key up: %w", cause)
					}
					return msg.UUID, nil
				})})
				msg := newMessage()
				assert.False(t, k.deliver(msg), name)
				assert.Equal(t, 0, b.rows(), name)
				down.Store(false)
				assert.True(t, k.deliver(msg), name)
				rig.Eventually(b, name, func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
				require.NoError(t, k.router.Close())
			}
		}
	})},
	{Name: "a key that is long, and one within a topic", Why: "both are keys", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		long := inbox.ByFunc("long", func(msg *message.Message) (string, error) { return strings.Repeat(msg.UUID, 100_000), nil })
		k := b.keyless(keylessConfig{key: long.WithinTopic(), mode: pubsub.StoreFirst})
		for range 2 {
			assert.True(t, k.deliver(broken("good")))
		}
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, b.effects(broken("good")))
	})},
	{Name: "what an operator can do without a key", Why: "its key is looked for again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		k := b.keyless(keylessConfig{key: byOrder, mode: pubsub.StoreFirst})
		one := func() admin.Message {
			t.Helper()
			found := b.only(b.store, admin.FailedTerminal)
			return found
		}
		require.True(t, k.deliver(broken("bad")))
		rig.Eventually(b, "a queue serves it", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_consumers WHERE served_until > 0`) == 1
		})
		require.NoError(t, admin.New(k.store).Retry(t.Context(), one().ID, ada, nil))
		rig.Eventually(b, "it has none, and waits again", func() bool { return k.events.Count("parked") == 2 && b.open(admin.FailedTerminal) == 1 })
		assert.Contains(t, one().Reason, "no key: ")
		story := rig.Story(t, k.store, one().MessageID)
		assert.Len(t, story.Audit, 1)

		correct := func(payload string) {
			t.Helper()
			id := one().ID
			require.NoError(t, admin.New(k.store).ReplacePayload(t.Context(), id, []byte(payload), ada))
			require.NoError(t, admin.New(k.store).Retry(t.Context(), id, ada, nil))
		}
		correct(`{"order_id":1}`)
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, b.effects(broken("bad")))
		assert.True(t, k.deliver(order("copy", 1)), "a copy by its key")
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.Zero(t, b.effects(broken("copy")))

		require.True(t, k.deliver(broken("second")))
		correct(`{"order_id":1}`)
		rig.Eventually(b, "the key is known, and so is the message", func() bool { return b.rows() == 0 })
		assert.Zero(t, b.effects(broken("second")))

		require.True(t, k.deliver(broken("third")))
		correct(`{"order_id":1,"more":true}`)
		rig.Eventually(b, "the key is that of another message", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		require.NoError(t, admin.New(k.store).Retry(t.Context(), b.find(admin.Filter{Status: admin.Parked})[0].ID, ada, nil))
		rig.Eventually(b, "it is handled as another one", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, b.effects(broken("third")))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`), "no claim is left of the ids they had")

		require.True(t, k.deliver(broken("fourth")))
		require.NoError(t, admin.New(k.store).ReplacePayload(t.Context(), one().ID, []byte("{still none"), ada))
		require.True(t, k.deliver(broken("fourth")), "a copy of what was stored first")
		assert.Equal(t, 1, b.rows())
		require.NoError(t, admin.New(k.store).Discard(t.Context(), one().ID, ada))
		require.True(t, k.deliver(broken("fourth")), "a copy of what was discarded")
		assert.Zero(t, b.rows())
		assert.Zero(t, b.effects(broken("fourth")))
	})},
	{Name: "a key that cannot be looked for now", Why: "the message waits, and others do not", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var trouble atomic.Pointer[error] // of the bad one
		comes := func(err error) { trouble.Store(&err) }
		comes(errors.New("no id"))
		k := b.keyless(keylessConfig{mode: pubsub.StoreFirst, key: inbox.ByFunc("claim check", func(msg *message.Message) (string, error) {
			if err := *trouble.Load(); msg.UUID == "bad" && err != nil {
				return "", err
			}
			return msg.UUID, nil
		})})
		require.True(t, k.deliver(broken("bad")))
		stored := b.only(b.store, admin.FailedTerminal)
		comes(fmt.Errorf("the store of payloads: %w", inbox.ErrUnavailable))
		rig.Eventually(b, "a queue serves it", func() bool { return admin.New(k.store).Retry(t.Context(), stored.ID, ada, nil) == nil })
		for n := range 5 {
			assert.True(t, k.deliver(broken(fmt.Sprint("good ", n))))
		}
		rig.Eventually(b, "others are handled", func() bool { return b.count(`SELECT COUNT(*) FROM effects`) == 5 })
		rig.Eventually(b, "it waits", func() bool {
			waits := b.find(admin.Filter{Status: admin.FailedRetryable})
			return len(waits) == 1 && strings.Contains(waits[0].LastError, "the store of payloads") && waits[0].MessageID == stored.MessageID
		})
		comes(nil)
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, b.effects(broken("bad")))
	})},
	{Name: "no key, and no queue", Why: "it is kept, and a copy of it is acked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		h := millrace.Inbox{Store: b.store, Consumer: consumer, Key: byOrder}.Middleware(silent(effect))
		for range 3 {
			require.NoError(t, do(h, broken("bad")))
		}
		require.NoError(t, do(h, order("good", 1)))
		found := b.only(b.store, admin.FailedTerminal)
		assert.Equal(t, 1, b.rows())
		assert.Equal(t, 1, events.Count("parked"))
		assert.Equal(t, 2, events.Count("duplicate"))
		require.ErrorContains(t, admin.New(b.store).Retry(t.Context(), found.ID, ada, &rig.Publisher{}), "put pubsub.Durable before its handler")
		require.NoError(t, admin.New(b.store).Discard(t.Context(), found.ID, ada))
		require.NoError(t, do(h, broken("bad")))
		assert.Zero(t, b.rows())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM effects`))
	})},
	{Name: "no version, and no queue", Why: "the gate keeps it, and a copy of it is acked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware(millrace.VersionGate{}.Middleware(silent(effect)))
		for range 3 {
			require.NoError(t, do(h, broken("bad")))
		}
		found := b.only(b.store, admin.FailedTerminal)
		assert.Contains(t, found.Reason, "version")
		assert.Equal(t, 1, b.rows())
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM effects`))
	})},
}

// keylessBody delivers a message of which these settings find no key.
func keylessBody(name, why string, c keylessConfig, uuid, because string) testdb.Body {
	return testdb.Body{Name: name, Why: why, Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		b.keyless(c).stops(broken(uuid), because)
	})}
}

// TestDeduplicateWithoutAKey: gochannel delivers again at once what was nacked.
func TestDeduplicateWithoutAKey(t *testing.T) {
	feed := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	events := &rig.Events{}
	router := rig.NewRouter(t)
	claims := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Observers: []inbox.Observer{events}})
	router.AddMiddleware(millrace.Deduplicate{Claims: claims, Key: byOrder}.Middleware)
	router.AddConsumerHandler(consumer, "orders", feed, func(*message.Message) error { return nil })
	rig.Run(t, router)
	began := time.Now()
	require.NoError(t, feed.Publish("orders", broken("bad")))
	require.Eventually(t, func() bool { return events.Count("failed") >= 5 }, rig.Patience, time.Millisecond)
	assert.Greater(t, time.Since(began), 500*time.Millisecond, "it comes again after pauses that grow")
	assert.Equal(t, inbox.ReasonNoKey, events.Last("failed").Reason)
}

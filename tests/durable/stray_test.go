package durable_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestStoredMessageWithoutItsContext: the inbox cannot tell it from a copy, and the queue can.
func TestStoredMessageWithoutItsContext(t *testing.T) {
	testdb.Conformance(t, strayBodies)
}

const saidStray = "came to the inbox without its context"

// detached are middlewares that lose the context in which the message came.
var detached = map[string]message.HandlerMiddleware{
	"a context of its own": func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			msg.SetContext(context.Background())
			return h(msg)
		}
	},
	"a copy": func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return h(msg.Copy()) }
	},
	"a copy with another payload": func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return h(another(msg)) }
	},
}

// keepsStray expects that the only stored message is tried again, although it was acked.
func (b *bed) keepsStray(events *rig.Events) {
	b.Helper()
	assert.Equal(b, 1, b.rows())
	assert.Contains(b, b.only(b.store, admin.FailedRetryable).LastError, "CopyWithContext")
	assert.Equal(b, []int{1, 0}, b.claims())
	assert.Equal(b, 1, events.Said(saidStray), "once per consumer")
}

var strayBodies = []testdb.Body{
	{Name: "a stored message that comes without its context", Why: "the inbox takes it for a copy of itself: it is not handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, lose := range detached {
			events, msg := b.told(), newMessage()
			queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1), inbox.Options{OnCollision: inbox.CollisionDrop})
			b.fails(queue, lose(h), name)
			for attempts := 2; attempts < 4; attempts++ {
				require.NoError(t, b.acks(queue, lose(h)), "it takes it for a copy")
				b.keepsStray(events)
				assert.Equal(t, attempts, b.only(b.store, admin.FailedRetryable).Attempts, "that is an attempt")
				b.due()
			}
			require.NoError(t, b.acks(queue, h), "the middleware is mended")
			assert.Equal(t, []int{1, 0}, []int{b.effects(msg), b.rows()}, name)
			b.db.Do(t, `DELETE FROM millrace_claims`)
		}
	})},
	{Name: "a stored message that always comes without its context", Why: "it does not go on for ever, and somebody is told", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		config := inbox.QueueConfig{MaxAttempts: 2, Classify: func(err error) error {
			if errors.Is(err, errBoom) {
				return err
			}
			return inbox.Terminal(err)
		}}
		queue, h := b.storeIn(config, newMessage()), b.within(failsAt(1))
		b.fails(queue, detached["a copy"](h))
		require.NoError(t, b.acks(queue, detached["a copy"](h)))
		assert.Contains(t, b.only(b.store, admin.Parked).LastError, "CopyWithContext")
		assert.Equal(t, 1, events.Count("parked"))
	})},
	{Name: "a service whose middleware loses the context", Why: "a message that failed once waits until the service is mended", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		in := millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware
		h := failsAt(1)
		durable := quick(b.store)
		durable.MaxAttempts = 1_000_000
		s := b.start(durable, h, detached["a context of its own"], in)
		assert.True(t, s.deliver(msg), "it is stored")
		rig.Eventually(b, "it is said", says(events, saidStray))
		require.NoError(t, s.router.Close())
		assert.Equal(t, []int{0, 1}, []int{b.effects(msg), b.rows()})
		b.told()
		b.start(quick(b.store), h, millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
	{Name: "a stored message with a gap that comes without its context", Why: "it waits for its predecessor", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		queue := b.storeIn(inbox.QueueConfig{}, stamped("a", 2))
		require.NoError(t, b.acks(queue, detached["a copy"](b.within(millrace.VersionGate{}.Middleware(silent(effect))))))
		b.keepsStray(events)
	})},
	{Name: "a stored message that comes without its context, and a failure that somebody takes over", Why: "nobody knows of the failure", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		queue := b.storeIn(inbox.QueueConfig{}, newMessage())
		require.ErrorIs(t, b.acks(queue, detached["a copy"](b.within(failsAt(1)))), errBoom)
		b.keepsStray(events)
	})},
	{Name: "a stored message that comes without its context, and is not tried", Why: "nobody knows of that", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		queue, h := b.storeIn(inbox.QueueConfig{}, newMessage()), b.within(failsAt())
		require.ErrorIs(t, b.acks(queue, func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			msg.SetContext(ctx)
			return h(msg)
		}), context.Canceled)
		b.keepsStray(events)
	})},
	{Name: "a stored message that comes without its context and is handled", Why: "it is closed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		require.NoError(t, b.acks(b.storeIn(inbox.QueueConfig{}, msg), detached["a copy"](b.within(failsAt()))))
		assert.Equal(t, []int{1, 0, 0}, []int{b.effects(msg), b.rows(), events.Said(saidStray)})
	})},
	{Name: "a middleware that acks without the inbox", Why: "the message is closed, whatever copies the inbox meets", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1, 2))
		b.fails(queue, h)
		b.fails(queue, func(m *message.Message) ([]*message.Message, error) {
			require.NoError(t, do(h, msg.Copy()), "a copy from elsewhere")
			return h(m)
		})
		require.NoError(t, b.acks(queue, silent(func(*message.Message) error { return nil })), "it is filtered out")
		assert.Equal(t, []int{0, 0, 0}, []int{b.effects(msg), b.rows(), events.Said(saidStray)})
	})},
	{Name: "a copy without a context, and a message that turns out to be handled", Why: "its ack counts", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1))
		b.fails(queue, h)
		require.NoError(t, b.acks(queue, func(m *message.Message) ([]*message.Message, error) {
			require.NoError(t, do(h, msg.Copy()))
			b.db.Do(t, `UPDATE millrace_claims SET result = 1`) // by another process
			return h(m)
		}))
		assert.Equal(t, []int{0, 0, 0}, []int{b.effects(msg), b.rows(), events.Said(saidStray)})
	})},
	{Name: "a copy without a context while the queue has the message out", Why: "it is a copy, and the message is handled once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1))
		b.fails(queue, h)
		require.NoError(t, b.acks(queue, func(m *message.Message) ([]*message.Message, error) {
			require.NoError(t, do(h, msg.Copy()))
			assert.Zero(t, b.effects(msg))
			return h(m)
		}))
		assert.Equal(t, []int{1, 0, 0}, []int{b.effects(msg), b.rows(), events.Said(saidStray)})
	})},
}

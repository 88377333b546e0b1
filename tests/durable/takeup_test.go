package durable_test

import (
	"slices"
	"sync/atomic"
	"testing"

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

var everyRule = map[string]inbox.ReplayRule{
	"allow": inbox.ReplayAllow, "suppress": inbox.ReplaySuppress, "refuse": inbox.ReplayRefuse,
}

// failing is a service whose handler fails until it is mended, and then takes the payload "right" alone.
type failing struct {
	*service
	name   string
	mended atomic.Bool
	events *rig.Events
}

// failing starts a service with a consumer of its own, whose messages are parked after one attempt.
func (b *bed) failing(name string, mode pubsub.Mode, rule inbox.ReplayRule) *failing {
	b.Helper()
	f := &failing{name: name, events: b.told()}
	durable := quick(b.store)
	durable.Mode, durable.Consumer, durable.MaxAttempts = mode, name, 1
	f.service = b.start(durable, f.handle, inboxOf(durable, inbox.Options{OnReplay: rule}))
	return f
}

func (f *failing) handle(msg *message.Message) ([]*message.Message, error) {
	if !f.mended.Load() || string(msg.Payload) == "wrong" {
		return nil, errBoom
	}
	return invoicing(msg)
}

func (f *failing) ends() {
	f.Helper()
	require.NoError(f, f.router.Close())
	assert.Equal(f, 0, f.rows(), f.name)
	f.db.Do(f, `DELETE FROM effects`)
}

// takeUpBodies: what a replay does to messages that have failed before, as one of a
// dead-letter queue has.
var takeUpBodies = []testdb.Body{
	{Name: "a replay of what is parked because it failed", Why: "it is no copy of its own failure: it runs once, under every rule", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, where := range []string{"on failure", "first"} {
			for word, rule := range everyRule {
				f := b.failing(word+" "+where, pubsub.Mode(mode), rule)
				msg := newMessage()
				f.parks(msg)
				f.mended.Store(true)
				f.handles(replayed(msg))
				rig.Eventually(f, "what it returned is sent", func() bool { return len(f.published.Messages()) == 1 })
				assert.True(t, f.deliver(replayed(msg)), f.name)
				rig.Eventually(f, "the next one is a duplicate", func() bool { return f.rows() == 0 })
				assert.Equal(t, 1, f.effects(msg), f.name)
				audit := rig.Story(t, f.store, msg.UUID).Audit
				require.NotEmpty(t, audit, f.name)
				last := audit[len(audit)-1]
				assert.Equal(t, "replay", last.Action, f.name)
				assert.Contains(t, last.Operator.Reason, `"of May"`, f.name)
				f.ends()
			}
		}
	})},
	{Name: "a replay of what is parked because it failed, where no queue is any more", Why: "its own delivery runs it, with all its effects", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for word, rule := range everyRule {
			f := b.failing(word, pubsub.StoreOnFailure, rule)
			msg := newMessage()
			f.parks(msg)
			require.NoError(t, f.router.Close())
			b.unserve()
			store := b.process()
			fails := true
			h := millrace.Inbox{Store: store, Consumer: word, Options: inbox.Options{OnReplay: rule}}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				if fails {
					return nil, errBoom
				}
				return nil, effect(msg)
			})
			require.ErrorIs(t, do(h, replayed(msg)), errBoom, word)
			assert.Equal(t, 1, b.open(admin.FailedRetryable), word)
			fails = false
			require.NoError(t, do(h, replayed(msg)), word)
			require.NoError(t, do(h, replayed(msg)), word)
			assert.Equal(t, 1, b.effects(msg), word)
			assert.Equal(t, 0, b.rows(), word)
		}
	})},
	{Name: "a replay of what failed for good", Why: "terminal is terminal for the handler that said so, not for the next one", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var mended atomic.Bool
		s := b.inboxed(quick(b.store), func(msg *message.Message) error {
			if !mended.Load() {
				return inbox.Terminal(errBoom)
			}
			return effect(msg)
		})
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it has failed", func() bool { return b.open(admin.FailedTerminal) == 1 })
		mended.Store(true)
		s.handles(replayed(msg))
	})},
	{Name: "a replay with a corrected payload", Why: "it takes the place of the one that failed, and runs once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, where := range []string{"on failure", "first"} {
			f := b.failing(where, pubsub.Mode(mode), inbox.ReplayAllow)
			f.mended.Store(true)
			msg := newMessage()
			msg.Payload = []byte("wrong")
			f.parks(msg)
			right := replayed(msg)
			right.Payload = []byte("right")
			assert.True(t, f.deliver(right), where)
			rig.Eventually(f, "it is handled", func() bool { return f.effects(msg) == 1 && f.rows() == 0 })
			assert.True(t, f.deliver(right), where)
			rig.Eventually(f, "a copy of it is one", func() bool { return f.rows() == 0 })
			assert.Equal(t, 1, f.effects(msg), where)
			audit := rig.Story(t, f.store, msg.UUID).Audit
			assert.True(t, slices.ContainsFunc(audit, func(a admin.StoryAudit) bool { return a.Action == "replace payload" }), where)

			parked := f.parks(another(replayed(msg))) // what collides with a completed one is a collision
			assert.Equal(t, 1, f.effects(msg), where)
			assert.NotEmpty(t, parked.Original, where)
			require.NoError(t, admin.New(f.store).Discard(t.Context(), parked.ID, ada))
			f.ends()
		}
	})},
	{Name: "a corrected payload that fails as well", Why: "it is kept, not the one before", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		f := b.failing("billing", pubsub.StoreOnFailure, inbox.ReplayAllow)
		msg := newMessage()
		f.parks(msg)
		right := replayed(msg)
		right.Payload = []byte("right")
		assert.True(t, f.deliver(right))
		rig.Eventually(f, "it is parked again", func() bool {
			parked := rig.Parked(t, f.store)
			return len(parked) == 1 && string(parked[0].Payload) == "right"
		})
		f.mended.Store(true)
		assert.True(t, f.deliver(right))
		rig.Eventually(f, "it is handled", func() bool { return f.effects(msg) == 1 && f.rows() == 0 })
	})},
	{Name: "another message with the key of what is parked", Why: "a corrected payload has the id of the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Key, durable.MaxAttempts = inbox.ByMetadata("order"), 1
		s := b.inboxed(durable, func(*message.Message) error { return errBoom }, inbox.Options{OnCollision: inbox.CollisionPark})
		msg, other := b.sharingOrder()
		s.parks(msg)
		assert.True(t, s.deliver(replayed(other)))
		rig.Eventually(b, "both are", func() bool { return b.open(admin.Parked) == 2 })
	})},
	{Name: "a replay of what was refused", Why: "that it waits for an ada is no failure", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, where := range []string{"on failure", "first"} {
			f := b.failing(where, pubsub.Mode(mode), inbox.ReplayRefuse)
			f.mended.Store(true)
			msg := replayed(newMessage())
			row := f.parks(msg)
			assert.True(t, f.deliver(msg), where)
			assert.Equal(t, 1, f.open(admin.Parked), where)
			assert.Equal(t, 0, f.effects(msg), where)
			require.NoError(t, admin.New(f.store).Discard(t.Context(), row.ID, ada))
			f.ends()
		}
	})},
}

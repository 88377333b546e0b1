package durable_test

import (
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
	f.service = b.start(durable, f.handle, millrace.Inbox{Store: b.store, Consumer: name, Options: inbox.Options{OnReplay: rule}}.Middleware)
	return f
}

func (f *failing) handle(msg *message.Message) ([]*message.Message, error) {
	if !f.mended.Load() || string(msg.Payload) == "wrong" {
		return nil, errBoom
	}
	return []*message.Message{newMessage()}, effect(msg)
}

// parks delivers msg, which fails, and returns its row.
func (f *failing) parks(msg *message.Message) admin.Message {
	f.Helper()
	assert.True(f, f.deliver(msg), f.name)
	rig.Eventually(f, "it is parked", func() bool { return f.open(admin.Parked) == 1 })
	parked := rig.Parked(f, f.store)
	require.Len(f, parked, 1)
	return parked[0]
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
				assert.True(t, f.deliver(replayed(msg)), f.name)
				rig.Eventually(f, "it is handled", func() bool { return f.effects(msg) == 1 && f.rows() == 0 })
				rig.Eventually(f, "what it returned is sent", func() bool { return len(f.published.Messages()) == 1 })
				assert.True(t, f.deliver(replayed(msg)), f.name)
				rig.Eventually(f, "the next one is a duplicate", func() bool { return f.rows() == 0 })
				assert.Equal(t, 1, f.effects(msg), f.name)
				story := rig.Story(t, f.store, msg.UUID)
				require.NotEmpty(t, story.Audit, f.name)
				last := story.Audit[len(story.Audit)-1]
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
			b.db.Do(t, `UPDATE millrace_consumers SET served_until = 0`)
			store := b.process()
			fails := true
			h := millrace.Inbox{Store: store, Consumer: word, Options: inbox.Options{OnReplay: rule}}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				if fails {
					return nil, errBoom
				}
				return nil, effect(msg)
			})
			_, err := h(replayed(msg))
			require.ErrorIs(t, err, errBoom, word)
			assert.Equal(t, 1, b.open(admin.FailedRetryable), word)
			fails = false
			_, err = h(replayed(msg))
			require.NoError(t, err, word)
			_, err = h(replayed(msg))
			require.NoError(t, err, word)
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
		assert.True(t, s.deliver(replayed(msg)))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
	{Name: "a copy of what is parked", Why: "only a replay brings it back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, where := range []string{"on failure", "first"} {
			f := b.failing(where, pubsub.Mode(mode), inbox.ReplayAllow)
			msg := newMessage()
			row := f.parks(msg)
			f.mended.Store(true)
			assert.True(t, f.deliver(msg), where)
			assert.Equal(t, 1, f.open(admin.Parked), where)
			require.NoError(t, admin.New(f.store).Discard(t.Context(), row.ID, operator))
			f.ends()
		}
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
			story := rig.Story(t, f.store, msg.UUID)
			var actions []string
			for _, a := range story.Audit {
				actions = append(actions, a.Action)
			}
			assert.Contains(t, actions, "replace payload", where)

			other := replayed(msg)
			other.Payload = []byte("another")
			assert.True(t, f.deliver(other), where)
			rig.Eventually(f, "what collides with a completed one is a collision", func() bool { return f.open(admin.Parked) == 1 })
			assert.Equal(t, 1, f.effects(msg), where)
			parked := rig.Parked(t, f.store)
			assert.NotEmpty(t, parked[0].Original, where)
			require.NoError(t, admin.New(f.store).Discard(t.Context(), parked[0].ID, operator))
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
			parked, err := admin.New(f.store).Find(t.Context(), admin.Filter{Status: admin.Parked}, 0, 10)
			return err == nil && len(parked) == 1 && string(parked[0].Payload) == "right"
		})
		f.mended.Store(true)
		assert.True(t, f.deliver(right))
		rig.Eventually(f, "it is handled", func() bool { return f.effects(msg) == 1 && f.rows() == 0 })
	})},
	{Name: "another message with the key of what is parked", Why: "a corrected payload has the id of the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		key := inbox.ByMetadata("order")
		durable := quick(b.store)
		durable.Key, durable.MaxAttempts = key, 1
		s := b.start(durable, func(*message.Message) ([]*message.Message, error) { return nil, errBoom },
			millrace.Inbox{Store: b.store, Key: key, Options: inbox.Options{OnCollision: inbox.CollisionPark}}.Middleware)
		msg, other := newMessage(), newMessage()
		msg.Metadata.Set("order", "1")
		other.Metadata.Set("order", "1")
		other.Payload = []byte("other")
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		assert.True(t, s.deliver(replayed(other)))
		rig.Eventually(b, "both are", func() bool { return b.open(admin.Parked) == 2 })
	})},
	{Name: "a replay of what was refused", Why: "that it waits for an operator is no failure", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, where := range []string{"on failure", "first"} {
			f := b.failing(where, pubsub.Mode(mode), inbox.ReplayRefuse)
			f.mended.Store(true)
			msg := replayed(newMessage())
			row := f.parks(msg)
			other := msg.Copy()
			other.Payload = []byte("corrected")
			assert.True(t, f.deliver(msg), where)
			assert.Equal(t, 1, f.open(admin.Parked), where)
			assert.Equal(t, 0, f.effects(msg), where)
			require.NoError(t, admin.New(f.store).Discard(t.Context(), row.ID, operator))
			f.ends()
		}
	})},
}

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
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// replayed is what a replay sends for msg.
func replayed(msg *message.Message) *message.Message {
	c := msg.Copy()
	c.Metadata.Set(inbox.ReplayField, "of May")
	return c
}

var refuse, suppress = inbox.Options{OnReplay: inbox.ReplayRefuse}, inbox.Options{OnReplay: inbox.ReplaySuppress}

// told has the bed's store tell what it does.
func (b *bed) told() *rig.Events {
	b.Helper()
	events := &rig.Events{}
	b.store = rig.NewStore(b, b.db.Open(b).DB, inbox.Config{Observers: []inbox.Observer{events}, Logger: events})
	return events
}

var replayBodies = []testdb.Body{
	{Name: "refuse a replay behind a queue", Why: "it is parked once, and Retry runs it as often as it takes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode, name := range []string{"on failure", "first"} {
			events := b.told()
			durable := quick(b.store)
			durable.Mode, durable.Consumer = pubsub.Mode(mode), name
			var runs counter
			s := b.inboxed(durable, func(msg *message.Message) error {
				if runs.run(msg) < 3 {
					return errBoom
				}
				return effect(msg)
			}, refuse)
			msg := replayed(newMessage())
			parked := s.parks(msg)
			assert.True(t, s.deliver(msg), name)
			rig.Eventually(b, "the other copy is told of, if it comes so far", func() bool {
				return events.Count("replayed") == 2 || mode == int(pubsub.StoreFirst) && events.Count("replayed") == 1
			})
			assert.Equal(t, 0, runs.of(msg), name)
			assert.Equal(t, "refused", events.All("replayed")[0].Reason, name)
			assert.Equal(t, 1, b.open(admin.Parked), name)
			assert.Equal(t, "of May", parked.Metadata.Get(inbox.ReplayField), name)
			assert.Contains(t, parked.Reason, "of May", name)
			rig.Eventually(b, "the queue has it", func() bool {
				return admin.New(b.store).Retry(t.Context(), parked.ID, ada, nil) == nil
			})
			rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
			assert.Equal(t, 3, runs.of(msg), name)
			rig.Eventually(b, "it is told", func() bool { return events.Last("replayed").Reason == "ran although refused" })
			require.NoError(t, s.router.Close())
		}
	})},
	{Name: "refuse what was taken and put back", Why: "a message that was never tried is no less refused for it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		msg := replayed(newMessage())
		taken := b.takes(b.storeIn(inbox.QueueConfig{}, msg), 1)
		require.NoError(t, taken[0].PutBack(t.Context()))
		assert.Equal(t, 1, b.open(admin.FailedRetryable), "its claim is open already")
		b.refusing()
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		assert.Equal(t, 0, b.effects(msg))
		rig.Eventually(b, "it is told", func() bool { return events.Last("replayed").Reason == "refused" })
	})},
	{Name: "a refused replay in a queue with an order", Why: "I6: it holds back none of its key", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := storeFirst(b.store)
		durable.OrderKey = func(*message.Message) (string, error) { return "one", nil }
		s := b.inboxed(durable, effect, refuse)
		msg, next := replayed(newMessage()), newMessage()
		assert.True(t, s.deliver(msg))
		assert.True(t, s.deliver(next))
		rig.Eventually(b, "the next one is handled", func() bool { return b.effects(next) == 1 })
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Equal(t, 0, b.effects(msg))
		assert.Len(t, rig.Story(t, b.store, msg.UUID).History, 1)
	})},
	{Name: "suppress a replay behind a queue", Why: "it bears the field at each attempt, so nothing of it goes out", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		out := rig.NewOutbox(t, b.db.DB, outbox.Config{})
		for mode, name := range []string{"on failure", "first"} {
			events := b.told()
			durable := quick(b.store)
			durable.Mode, durable.Consumer = pubsub.Mode(mode), name
			var runs counter
			var replays atomic.Int32
			s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
				if inbox.IsReplay(msg.Context()) {
					replays.Add(1)
				}
				published := newMessage()
				published.SetContext(msg.Context())
				if err := out.Publish("mails", published); err != nil {
					return nil, err
				}
				if runs.run(msg) < 3 {
					return nil, errBoom
				}
				return []*message.Message{newMessage()}, effect(msg)
			}, inboxOf(durable, suppress))
			msg := replayed(newMessage())
			s.handles(msg)
			rig.Eventually(b, "it is told", func() bool { return events.Count("replayed") == 1 })
			assert.Equal(t, 2, events.Last("replayed").Count, name)
			assert.EqualValues(t, 3, replays.Load(), name)
			assert.Empty(t, s.published.Messages(), name)
			assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_outbox`), name)
			assert.Equal(t, 0, b.outcomes(), name)
			require.NoError(t, s.router.Close())
		}
	})},
	{Name: "a stored replay of what was completed", Why: "it is closed without a delivery, and told all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		s := b.inboxed(storeFirst(b.store), effect)
		msg := newMessage()
		s.handles(msg)
		assert.True(t, s.deliver(replayed(msg)))
		rig.Eventually(b, "the replay is told", func() bool { return events.Count("replayed") == 1 && b.rows() == 0 })
		told := events.Last("replayed")
		assert.Equal(t, "duplicate", told.Reason)
		assert.Equal(t, "of May", told.Replay)
		assert.Equal(t, msg.UUID, told.MessageID)
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a replay that the version gate holds", Why: "it bears the field when it is released", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		durable := quick(b.store)
		s := b.start(durable, invoicing, inboxOf(durable, suppress), millrace.VersionGate{}.Middleware)
		first, second := stamped("a", 1), stamped("a", 2)
		assert.True(t, s.deliver(replayed(second)))
		assert.Equal(t, 1, b.open(admin.Held))
		assert.Equal(t, "held", events.Last("replayed").Reason)
		assert.True(t, s.deliver(replayed(first)))
		rig.Eventually(b, "both are applied", func() bool { return b.effects(first)+b.effects(second) == 2 && b.rows() == 0 })
		rig.Eventually(b, "both are told", func() bool { return events.Count("replayed") == 3 })
		assert.Equal(t, "suppressed", events.Last("replayed").Reason)
		assert.Empty(t, s.published.Messages())
	})},
}

package durable_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestAConsumerCanBePaused(t *testing.T) {
	testdb.Conformance(t, pauseBodies)
}

var pauseBodies = []testdb.Body{
	{Name: "a paused queue", Why: "takes nothing, in any process, and says so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		require.ErrorIs(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada), inbox.ErrNotFound, "never heard of")
		here := b.storeIn(inbox.QueueConfig{}, newMessage(), newMessage())
		there := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		require.Error(t, admin.New(b.store).Pause(t.Context(), consumer, 0, admin.Operator{}))
		require.ErrorIs(t, admin.New(b.store).Pause(t.Context(), consumer, 1, ada), inbox.ErrNotFound)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		for _, q := range []*inbox.Queue{here, there} {
			assert.False(t, q.Paused(), "not seen yet")
			taken, next, err := q.Take(t.Context(), 10, time.Minute)
			require.NoError(t, err)
			assert.Empty(t, taken)
			assert.Equal(t, time.Minute, next)
			assert.True(t, q.Paused())
		}
		backlog := b.backlog(0)
		require.Len(t, backlog, 1)
		assert.True(t, backlog[0].Paused)
		assert.True(t, backlog[0].Served, "a paused queue will go on")

		require.NoError(t, admin.New(b.process()).Resume(t.Context(), consumer, 0, ada))
		assert.Len(t, rig.Take(t, here, 10), 2)
		assert.False(t, here.Paused())
		assert.Equal(t, 1, b.audited("pause"))
		assert.Equal(t, 1, b.audited("resume"))
	})},
	{Name: "a queue that is in full swing", Why: "it reads the row of its consumer now and then, and is paused all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, by := range []*inbox.Store{b.store, b.process()} {
			q := b.storeIn(inbox.QueueConfig{}, newMessage())
			taken := rig.Take(t, q, 1)
			require.Len(t, taken, 1)
			require.NoError(t, q.PutBack(t.Context(), taken...))
			require.NoError(t, admin.New(by).Pause(t.Context(), consumer, 0, ada))
			rig.Eventually(b, "it is noticed", func() bool {
				taken := rig.Take(t, q, 1)
				require.NoError(t, q.PutBack(t.Context(), taken...))
				require.True(t, q.Paused() || by != b.store, "at once in this process")
				return len(taken) == 0
			})
			require.NoError(t, admin.New(by).Resume(t.Context(), consumer, 0, ada))
		}
	})},
	{Name: "a service whose consumer is resumed", Why: "goes on at once, without another look at the table", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		durable := quick(b.store)
		durable.Mode, durable.Poll = pubsub.StoreFirst, time.Hour
		b.inboxed(durable, effect)
		rig.Eventually(b, "the queue looked", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_consumers WHERE served_until > 0`) == 1
		})
		assert.Zero(t, b.effects(msg))
		assert.Equal(t, 1, b.open(admin.Received))
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, ada))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
	{Name: "messages that arrive while their consumer is paused", Why: "are stored, in both modes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Poll = time.Hour
		s := b.inboxed(durable, effect)
		assert.True(t, s.deliver(newMessage()))
		assert.Zero(t, b.rows(), "nothing is written for what succeeds")
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		delivered := 1
		rig.Eventually(b, "one is stored", func() bool {
			delivered++
			return s.deliver(newMessage()) && b.open(admin.Received) > 0
		})
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, ada))
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, delivered, b.count(`SELECT COUNT(*) FROM effects`))
	})},
}

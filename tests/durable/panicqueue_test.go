package durable_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAQueueOutlives: functions that only a queue of its own is given, or that need a process that ends.
func TestAQueueOutlives(t *testing.T) {
	testdb.Conformance(t, outlivedBodies)
}

var outlivedBodies = []testdb.Body{
	{Name: "a Describe that panics in a queue", Why: "the message is stored without a type, and so are those beside it", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool := db.Open(t)
		pool.SetMaxOpenConns(2)
		store := b.newStore(pool.DB)
		q, err := store.Queue(inbox.QueueConfig{
			Consumer: consumer,
			Describe: func(msg *message.Message) (string, string) { trip(isBad(msg)); return "order", "1" },
		})
		require.NoError(t, err)
		first, good, failed := newBad(bad), newMessage(), newBad(bad+", failed")
		require.NoError(t, q.Put(t.Context(), "orders", first, good))
		_, straight := q.Straight("orders", failed)
		stored, err := straight.Fail(t.Context())
		require.NoError(t, err)
		assert.True(t, stored)
		types := map[string]string{}
		for _, m := range b.find(inbox.Filter{}) {
			types[m.UUID] = m.EventType
		}
		assert.Equal(t, map[string]string{first.UUID: "", good.UUID: "order", failed.UUID: ""}, types)
		assert.Positive(t, store.Panics())
		require.NoError(t, store.Close(t.Context()))
		assert.Zero(t, pool.Stats().InUse)
	}},
	{Name: "a ReclaimedObserver that panics", Why: "what a process that gave no answer had is handled all the same", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		other, err := b.process().Queue(inbox.QueueConfig{Consumer: consumer, Lease: time.Second})
		require.NoError(t, err)
		msgs := []*message.Message{newBad(bad), newMessage()}
		require.NoError(t, other.Put(t.Context(), "orders", msgs...))
		taken, _, err := other.TakeOut(t.Context(), len(msgs), len(msgs), time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, len(msgs), "they are never answered")
		pool := db.Open(t)
		pool.SetMaxOpenConns(3)
		store, err := inbox.NewStore(pool.DB, inbox.Config{Observers: []inbox.Observer{loud("reclaimed")}})
		require.NoError(t, err)
		s := b.inboxed(quick(store), effect)
		rig.Eventually(b, "both are handled", func() bool { return b.effects(msgs[0]) == 1 && b.effects(msgs[1]) == 1 && b.rows() == 0 })
		assert.GreaterOrEqual(t, store.Panics(), int64(1))
		require.NoError(t, s.router.Close())
		require.NoError(t, store.Close(t.Context()))
		rig.Eventually(b, "no connection is in use", func() bool { return pool.Stats().InUse == 0 })
	}},
	{Name: "a ReplayedObserver that panics for what is closed unseen", Why: "a copy of what was completed is closed, and the next is delivered", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		closed := replayed(newBad(bad))
		require.NoError(t, q.Put(t.Context(), "orders", closed))
		b.db.Do(t, `INSERT INTO millrace_claims (processed_at, payload_hash, token, consumer, result, message_id)
			SELECT received_at, payload_hash, 0, consumer, 1, message_id FROM millrace_messages`)
		next := newMessage()
		require.NoError(t, q.Put(t.Context(), "orders", next))
		store := rig.NewStore(t, b.db.Open(t).DB, inbox.Config{Observers: []inbox.Observer{loud("replayed")}})
		taken, _, err := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer}).Take(t.Context(), 10, time.Second)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		msg, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		assert.Equal(t, next.UUID, msg.UUID)
		assert.Equal(t, 1, b.rows(), "the other is closed")
		assert.EqualValues(t, 1, store.Panics())
	})},
}

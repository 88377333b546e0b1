package durable_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestTheQueueTells(t *testing.T) { testdb.Conformance(t, observerBodies) }

// observed is a store that tells events.
func (b *bed) observed() (*inbox.Store, *rig.Events) {
	b.Helper()
	events := &rig.Events{}
	store := rig.NewStore(b, b.db.DB, inbox.Config{Observers: []inbox.Observer{events}})
	return store, events
}

var observerBodies = []testdb.Body{
	{Name: "attempts, and their end", Why: "each attempt is told, and why there is no other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store, events := b.observed()
		var failure atomic.Pointer[error]
		durable := quick(store)
		durable.MaxAttempts = 3
		s := b.inboxed(durable, func(*message.Message) error { return *failure.Load() })
		for _, c := range []struct {
			err     error
			reason  string
			retried int
		}{
			{errBoom, inbox.ReasonAttempts, 2}, {inbox.Terminal(errBoom), inbox.ReasonTerminal, 0},
			{inbox.Terminal(inbox.ErrUnknownType), inbox.ReasonUnknownType, 0},
		} {
			failure.Store(&c.err)
			parked, retried := events.Count("parked"), events.Count("retried")
			msg := newMessage()
			msg.Metadata.Set("name", "paid")
			require.True(t, s.deliver(msg))
			rig.Eventually(b, "it is parked", func() bool { return events.Count("parked") > parked })
			e := events.Last("parked")
			assert.Equal(t, c.reason, e.Reason)
			assert.Equal(t, []string{msg.UUID, "orders", "paid"}, []string{e.UUID, e.Topic, e.Type})
			assert.ErrorContains(t, e.Err, c.err.Error())
			assert.Equal(t, c.retried+1, e.Attempt)
			require.Equal(t, c.retried, events.Count("retried")-retried)
		}
		all := events.All("retried")
		assert.Equal(t, []int{1, 2}, []int{all[0].Attempt, all[1].Attempt})
		assert.Equal(t, inbox.ReasonError, all[0].Reason)
	})},
	{Name: "leases that were taken over", Why: "a process ended, which nobody else tells", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store, events := b.observed()
		queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, Lease: time.Minute})
		require.NoError(t, queue.Put(t.Context(), "orders", newMessage(), newMessage(), newMessage()))
		take := func(want int) []*inbox.Leased {
			taken := rig.Take(t, queue, 10)
			require.Len(t, taken, want)
			return taken
		}
		take(3)
		assert.Zero(t, events.Count("reclaimed"))
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		taken := take(3)
		assert.Equal(t, 3, events.Last("reclaimed").Count)
		assert.Equal(t, consumer, events.Last("reclaimed").Consumer)
		require.NoError(t, queue.PutBack(t.Context(), taken...))
		take(3)
		assert.Equal(t, 1, events.Count("reclaimed"), "given back is not lapsed")
	})},
}

package durable_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A copy of a message that was handled collides with nothing, also while another payload under
// its key waits in the table: that one is parked, and the copy is none.
func TestACopyOfWhatWasHandledWhileAnotherPayloadWaits(t *testing.T) {
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Mode = pubsub.StoreFirst
		s := b.inboxed(durable, effect)
		msg := newMessage()
		require.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })

		by := admin.Operator{Name: "ann", Reason: "to see what waits"}
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, by))
		other := msg.Copy()
		other.Payload = []byte("another")
		require.True(t, s.deliver(other))
		require.True(t, s.deliver(msg), "a copy")
		assert.Equal(t, 1, b.rows(), "the other payload")
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, by))
		rig.Eventually(b, "the other payload is parked", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		found := rig.Find(t, b.store, admin.Filter{})
		assert.Equal(t, "another", string(found[0].Payload))
		assert.Equal(t, 1, b.effects(msg))
	}))
}

package durable_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOpenMessagesAreFound(t *testing.T) {
	testdb.Conformance(t, findBodies)
}

var findBodies = []testdb.Body{
	{Name: "lists by filter", Why: "each field narrows, pages are by the ID", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		_, msgs := b.stuck(12)
		other, err := b.store.Queue(inbox.QueueConfig{Consumer: "other", Epoch: 3, OrderKey: func(*message.Message) (string, error) { return "k", nil }})
		require.NoError(t, err)
		require.NoError(t, other.Put(t.Context(), "payments", newMessage()))
		leased, _, err := other.Take(t.Context(), 10, time.Second)
		require.NoError(t, err)
		require.Len(t, leased, 1)

		all := b.find(inbox.Filter{})
		require.Len(t, all, 13)
		failed := all[0]
		assert.Equal(t, msgs[0].Payload, message.Payload(failed.Payload))
		assert.NotZero(t, failed.ErrorGroup)
		parked := b.find(inbox.Filter{Status: inbox.Parked})
		require.Len(t, parked, 2)
		assert.Zero(t, failed.LeasedUntil)
		assert.Zero(t, failed.DueAt, "never by itself")
		given := all[12]
		assert.Equal(t, "k", given.OrderKey)
		assert.WithinDuration(t, time.Now().Add(time.Minute), given.LeasedUntil, 30*time.Second)
		assert.Zero(t, given.ErrorGroup)

		three, zero := 3, 0
		middle := all[6].ReceivedAt
		for want, f := range map[int]inbox.Filter{
			12: {Consumer: consumer},
			1:  {Epoch: &three},
			10: {Status: inbox.FailedTerminal},
			2:  {ErrorGroup: parked[0].ErrorGroup, Topic: "orders", Consumer: consumer, Epoch: &zero},
			0:  {Consumer: "other", Epoch: &zero},
			13: {ReceivedSince: all[0].ReceivedAt},
		} {
			assert.Equal(t, want, len(b.find(f)), "%+v", f)
		}
		before, from := b.find(inbox.Filter{ReceivedUntil: middle}), b.find(inbox.Filter{ReceivedSince: middle})
		assert.Equal(t, 13, len(before)+len(from))
		var paged []inbox.Message
		for after := int64(0); ; after = paged[len(paged)-1].ID {
			page, err := b.store.Find(t.Context(), inbox.Filter{}, after, 5)
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			paged = append(paged, page...)
		}
		assert.Equal(t, all, paged)
		for _, limit := range []int{-1, 0, inbox.MaxPage + 1} {
			_, err := b.store.Find(t.Context(), inbox.Filter{}, 0, limit)
			assert.ErrorContains(t, err, "limit")
		}
		_, err = b.store.Find(t.Context(), inbox.Filter{Status: 99}, 0, 1)
		require.ErrorContains(t, err, "Status(99)")
	}},
}

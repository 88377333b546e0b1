package durable_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOpenMessagesAreFound(t *testing.T) {
	testdb.Conformance(t, findBodies)
}

var findBodies = []testdb.Body{
	{Name: "a page whose messages are handled meanwhile", Why: "an empty page says that there are no more", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		b.storeIn(inbox.QueueConfig{}, msgs...)
		pool := faults.Open(t, b.db)
		handled := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "payload") && handled < 2 { // it reads the rows that it has found
				b.db.Do(t, `DELETE FROM millrace_messages WHERE uuid = ?`, []byte(msgs[handled].UUID))
				handled++
			}
			return nil
		}})
		found, err := admin.New(rig.NewStore(t, pool.DB, inbox.Config{})).Find(t.Context(), admin.Filter{}, 0, 1)
		require.NoError(t, err)
		require.Equal(t, 2, handled)
		require.Len(t, found, 1)
		assert.Equal(t, msgs[2].UUID, found[0].UUID)
	})},
	{Name: "lists by filter", Why: "each field narrows, pages are by the ID", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		_, msgs := b.stuck(12)
		other := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "other", Epoch: 3, OrderKey: func(*message.Message) (string, error) { return "k", nil }})
		require.NoError(t, other.Put(t.Context(), "payments", newMessage()))
		leased := rig.Take(t, other, 10)
		require.Len(t, leased, 1)

		all := b.find(admin.Filter{})
		require.Len(t, all, 13)
		failed := all[0]
		assert.Equal(t, msgs[0].Payload, message.Payload(failed.Payload))
		assert.NotZero(t, failed.ErrorGroup)
		parked := b.find(admin.Filter{Status: admin.Parked})
		require.Len(t, parked, 2)
		assert.Zero(t, failed.LeasedUntil)
		assert.Zero(t, failed.DueAt, "never by itself")
		given := all[12]
		assert.Equal(t, "k", given.OrderKey)
		assert.WithinDuration(t, time.Now().Add(time.Minute), given.LeasedUntil, 30*time.Second)
		assert.Zero(t, given.ErrorGroup)

		three, zero := 3, 0
		middle := all[6].ReceivedAt
		for want, f := range map[int]admin.Filter{
			12: {Consumer: consumer},
			1:  {Epoch: &three},
			10: {Status: admin.FailedTerminal},
			2:  {ErrorGroup: parked[0].ErrorGroup, Topic: "orders", Consumer: consumer, Epoch: &zero},
			0:  {Consumer: "other", Epoch: &zero},
			13: {ReceivedSince: all[0].ReceivedAt},
		} {
			assert.Equal(t, want, len(b.find(f)), "%+v", f)
		}
		before, from := b.find(admin.Filter{ReceivedUntil: middle}), b.find(admin.Filter{ReceivedSince: middle})
		assert.Equal(t, 13, len(before)+len(from))
		var paged []admin.Message
		for after := int64(0); ; after = paged[len(paged)-1].ID {
			page, err := admin.New(b.store).Find(t.Context(), admin.Filter{}, after, 5)
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			paged = append(paged, page...)
		}
		assert.Equal(t, all, paged)
		for _, limit := range []int{-1, 0, admin.MaxPage + 1} {
			_, err := admin.New(b.store).Find(t.Context(), admin.Filter{}, 0, limit)
			assert.ErrorContains(t, err, "limit")
		}
		_, err := admin.New(b.store).Find(t.Context(), admin.Filter{Status: 99}, 0, 1)
		require.ErrorContains(t, err, "Status(99)")
	})},
	{Name: "a search ends before it is through", Why: "who waits is told how far it got, and page by page all is found once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var rare []int64
		for _, name := range []string{"a", "b", "c"} {
			queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: name})
			for _, topic := range []string{"orders", "orders", "rare", "orders"} {
				require.NoError(t, queue.Put(t.Context(), topic, newMessages(25)...))
			}
		}
		for _, m := range b.find(admin.Filter{Topic: "rare"}) {
			rare = append(rare, m.ID)
		}
		require.Len(t, rare, 75)
		for _, c := range []struct{ limit, look, atLeast int }{{10, 1, 10}, {3, 30, 25}, {100, 1, 1}, {100, 1000, 1}, {75, 1000, 1}, {25, 100, 3}} {
			found, pages := b.search(admin.Filter{Topic: "rare"}, c.limit, c.look)
			assert.Equal(t, rare, found, "%+v", c)
			assert.GreaterOrEqual(t, pages, c.atLeast, "%+v", c)
		}
		_, pages := b.search(admin.Filter{Topic: "nowhere"}, 5, 50)
		assert.Greater(t, pages, 5, "each looks at 50 rows and a few more, of 300")
		_, pages = b.search(admin.Filter{Topic: "nowhere"}, 5, 1000)
		assert.Equal(t, 1, pages)
		_, err := admin.New(b.store).Search(t.Context(), admin.Filter{}, 0, 5, -1)
		assert.ErrorContains(t, err, "is negative")
	})},
	{Name: "a search for a group of failures", Why: "it reads the group alone, of the states that are meant", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stuck(14)
		groups, err := admin.New(b.store).FailureGroups(t.Context(), admin.Filter{})
		require.NoError(t, err)
		require.Len(t, groups, 2)
		for _, g := range groups {
			assert.False(t, g.AtLeast)
			found, pages := b.search(admin.Filter{ErrorGroup: g.ErrorGroup}, 20, 1)
			assert.Len(t, found, g.Messages)
			assert.Equal(t, 1, pages, "the other group is not looked at")
		}
		terminal := admin.Filter{ErrorGroup: groups[0].ErrorGroup, Status: admin.FailedTerminal}
		found, _ := b.search(terminal, 3, 1000)
		assert.Len(t, found, groups[0].Messages)
		terminal.Status = admin.Parked
		found, _ = b.search(terminal, 3, 1000)
		assert.Empty(t, found)
		other, err := admin.New(b.store).FailureGroups(t.Context(), terminal)
		require.NoError(t, err)
		assert.Empty(t, other)
	})},
}

// search goes from page to page, and back.
func (b *bed) search(f admin.Filter, limit, look int) (ids []int64, pages int) {
	b.Helper()
	ids, pages = b.walk(admin.New(b.store).Search, f, limit, look, func(last, next int64) bool { return next > last })
	back, _ := b.walk(admin.New(b.store).SearchBack, f, limit, look, func(last, next int64) bool { return last == 0 || next < last })
	slices.Reverse(back)
	assert.Equal(b, ids, back)
	return ids, pages
}

func (b *bed) walk(
	search func(context.Context, admin.Filter, int64, int, int) (admin.Page, error), f admin.Filter, limit, look int, on func(last, next int64) bool,
) (ids []int64, pages int) {
	b.Helper()
	for last := int64(0); ; {
		page, err := search(b.Context(), f, last, limit, look)
		require.NoError(b, err)
		pages++
		for _, m := range page.Messages {
			ids = append(ids, m.ID)
		}
		if page.Next == 0 {
			return ids, pages
		}
		require.True(b, on(last, page.Next), "it goes on")
		require.LessOrEqual(b, len(page.Messages), limit)
		last = page.Next
	}
}

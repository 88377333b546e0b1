package tests_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestActivityIsKept(t *testing.T) {
	testdb.Conformance(t, activityBodies)
}

// activity is what was done since an hour ago, without the minutes and the times.
func (b *bed) activity(store *inbox.Store) map[string]admin.Activity {
	b.Helper()
	all, err := admin.New(store).Activity(b.Context(), time.Now().Add(-time.Hour))
	require.NoError(b, err)
	sums := map[string]admin.Activity{}
	for _, a := range all {
		assert.WithinDuration(b, time.Now(), a.Minute, 5*time.Minute)
		assert.Zero(b, a.Minute.Second())
		sum := sums[fmt.Sprint(a.Consumer, a.Epoch)]
		sum.Completed += a.Completed
		sum.Failed += a.Failed
		sum.Duplicates += a.Duplicates
		sum.Parked += a.Parked
		sum.Handling += a.Handling
		sums[fmt.Sprint(a.Consumer, a.Epoch)] = sum
	}
	return sums
}

// withoutActivity runs work while the table is not there.
func (b *bed) withoutActivity(work func()) {
	b.Helper()
	b.exec(`ALTER TABLE millrace_activity RENAME TO millrace_away`)
	work()
	b.exec(`ALTER TABLE millrace_away RENAME TO millrace_activity`)
}

var activityBodies = []testdb.Body{
	{Name: "what processes did", Why: "the sum over all of them, by consumer and epoch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for range 2 {
			store := b.process()
			h := b.inbox(effect, on(store))
			msg := newMessage("x")
			must(t, h, again(msg))
			must(t, h, again(msg))
			must(t, h, message.NewMessage(msg.UUID, []byte("y")))
			must(t, b.inbox(effect, on(store), func(i *millrace.Inbox) { i.Epoch = 1 }), again(msg))
			rig.MustFail(t, b.inbox(alwaysFails, on(store)), newMessage("z"), errBoom)
			require.NoError(t, store.Close(t.Context()))
			require.NoError(t, store.Close(t.Context()), "there is nothing left to write")
		}
		got := b.activity(b.store)
		require.Len(t, got, 2)
		for name, a := range got {
			assert.Positive(t, a.Handling)
			assert.Less(t, a.Handling, time.Minute)
			a.Handling = 0
			got[name] = a
		}
		assert.Equal(t, map[string]admin.Activity{
			"billing0": {Completed: 2, Failed: 2, Duplicates: 2, Parked: 2},
			"billing1": {Completed: 2},
		}, got)
		assert.Empty(t, b.activity(b.newStore(b.db.DB, inbox.Config{Namespace: "other"})))
		later, err := admin.New(b.store).Activity(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		assert.Empty(t, later)
	})},
	{Name: "while it runs", Why: "figures are written before the process ends, and only where something was done", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.newStore(b.db.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		stopped := rig.Go(func() error { return store.Run(t.Context()) })
		_, err := store.Consumer(inbox.ConsumerConfig{Name: "idle"})
		require.NoError(t, err)
		must(t, b.inbox(effect, on(store)), newMessage("x"))
		require.Eventually(t, func() bool { return b.activity(b.store)["billing0"].Completed == 1 }, rig.Patience, 5*time.Millisecond)
		must(t, b.inbox(effect, on(store)), newMessage("y"))
		require.NoError(t, store.Close(t.Context()))
		require.NoError(t, <-stopped)
		got := b.activity(b.store)
		assert.Equal(t, int64(2), got["billing0"].Completed)
		assert.NotContains(t, got, "idle0")
	})},
	{Name: "figures that cannot be written", Why: "no delivery fails for them, one line says so, and none is lost", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		told := func() int {
			return strings.Count(strings.Join(b.events.Logs(), "\n"), "the activity could not be written")
		}
		must(t, b.inbox(effect), newMessage("x"))
		b.withoutActivity(func() {
			must(t, b.inbox(effect), newMessage("y"))
			for range 3 {
				require.NoError(t, b.store.Close(t.Context()))
			}
			assert.Equal(t, 1, told())
		})
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, int64(2), b.activity(b.store)["billing0"].Completed)
		assert.Equal(t, 1, told())
	})},
	{Name: "activity of more than a day ago", Why: "the janitor deletes it, all of it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		require.NoError(t, b.store.Close(t.Context()))
		const old = 2500
		minute := time.Now().Add(-admin.ActivityKept).Truncate(time.Minute).UnixMicro()
		b.exec(fmt.Sprintf(`INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 49)
			SELECT %d - (a.j * 50 + b.j) * 3000000000, 1, 1, 0, 0, 0, 0, 0, 0 FROM n a CROSS JOIN n b`, minute))
		require.Equal(t, old+1, b.count(`SELECT COUNT(*) FROM millrace_activity`))
		store := b.process()
		rig.Purge(t, store)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_activity`))
		assert.Equal(t, int64(1), b.activity(store)["billing0"].Completed)
	})},
}

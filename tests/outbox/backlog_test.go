package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestWhatIsKnownOfAnOutbox(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, figureBodies)
}

var figureBodies = []testdb.Body{
	{Name: "the figures of a backlog", Why: "one for each state, up to a limit, without what was sent", Run: func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		n := func(n int) outbox.Count { return outbox.Count{N: n} }
		figures := func(countTo int) outbox.Backlog {
			b, err := p.out.Backlog(t.Context(), outbox.BacklogOptions{CountTo: countTo})
			require.NoError(t, err)
			return b
		}
		assert.Equal(t, outbox.Backlog{}, figures(0))

		all := p.send("orders", "k", 20)
		for i, status := range map[int]int{0: rowParked, 1: rowRetry, 2: rowRetry, 3: rowHeld, 4: rowHeld, 5: rowHeld, 6: rowSent} {
			db.Do(t, `UPDATE millrace_outbox SET status = ?, due_at = 7, blocked_key = 7 WHERE uuid = ?`, status, all[i])
		}
		db.Do(t, `UPDATE millrace_outbox SET blocked_key = NULL WHERE status = 4`)
		age := func(uuid string, by time.Duration) {
			db.Do(t, `UPDATE millrace_outbox SET created_at = created_at - ? WHERE uuid = ?`, by.Microseconds(), uuid)
		}
		age(all[3], 3*time.Hour) // held, while one of its key is parked: it waits for an operator
		age(all[9], time.Hour)
		got := figures(0)
		assert.InDelta(t, time.Hour, got.OldestPending, float64(time.Minute))
		age(all[1], 2*time.Hour)
		got = figures(0)
		assert.InDelta(t, 2*time.Hour, got.OldestPending, float64(time.Minute))
		got.OldestPending = 0
		assert.Equal(t, outbox.Backlog{Pending: n(13), Retrying: n(2), Held: n(3), Parked: n(1)}, got)
		assert.Equal(t, n(18), got.Unsent())

		got = figures(2)
		most := outbox.Count{N: 2, AtLeast: true}
		assert.Equal(t, []outbox.Count{most, n(2), most, n(1)}, []outbox.Count{got.Pending, got.Retrying, got.Held, got.Parked})
		assert.Equal(t, outbox.Count{N: 6, AtLeast: true}, got.Unsent())
		_, err := p.out.Backlog(t.Context(), outbox.BacklogOptions{CountTo: -1})
		require.ErrorContains(t, err, "negative")

		db.Do(t, `UPDATE millrace_outbox SET key_hash = key_hash - 1 WHERE uuid = ?`, all[0])
		assert.InDelta(t, 3*time.Hour, figures(0).OldestPending, float64(time.Minute), "what is parked of another key is not in its way")
		db.Do(t, `UPDATE millrace_outbox SET status = 0, due_at = 0, blocked_key = NULL WHERE uuid = ?`, all[0])
		assert.InDelta(t, 3*time.Hour, figures(0).OldestPending, float64(time.Minute), "a key that gets more than goes out")
	}},
	{Name: "who has which shard", Why: "an operator sees relays that live, and shards that nobody has", Run: func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		layout := func() outbox.Layout {
			l, err := p.out.Shards(t.Context())
			require.NoError(t, err)
			return l
		}
		assert.Equal(t, outbox.Layout{}, layout(), "no relay ever ran")

		a, b := p.member("a"), p.member("b")
		p.shared(a, b)
		l := layout()
		require.Len(t, l.Shards, shards)
		assert.Zero(t, l.Unowned())
		require.Len(t, l.Relays, 2)
		names := map[string]outbox.RelayLease{l.Relays[0].Name: l.Relays[0], l.Relays[1].Name: l.Relays[1]}
		for _, name := range []string{"a", "b"} {
			r := names[name]
			assert.True(t, r.Alive)
			assert.Equal(t, shards/2, r.Shards)
			assert.WithinDuration(t, time.Now().Add(15*time.Second), r.Until, 12*time.Second)
			assert.WithinDuration(t, time.Now(), r.StartedAt, time.Minute)
		}
		for i, s := range l.Shards {
			assert.Equal(t, i, s.Number)
			assert.Equal(t, names[s.Relay].Token, s.Owner)
			assert.True(t, s.Alive)
		}

		// One that died is listed until another relay forgets it.
		require.NoError(t, a.stop())
		require.NoError(t, b.stop())
		l = layout()
		assert.Empty(t, l.Relays)
		assert.Equal(t, shards, l.Unowned())
		for _, statement := range []string{
			`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'dead', 1, 2)`,
			`UPDATE millrace_outbox_shards SET owner = 7 WHERE shard = 3`,
		} {
			db.Do(t, statement)
		}
		l = layout()
		assert.Equal(t, outbox.Shard{Number: 3, Owner: 7, Relay: "dead"}, l.Shards[3])
		assert.False(t, l.Relays[0].Alive)
		assert.Equal(t, shards, l.Unowned())
	}},
}

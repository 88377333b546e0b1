package outbox_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
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
		assert.Positive(t, got.OldestParked)
		got.OldestPending, got.OldestParked = 0, 0
		assert.Equal(t, outbox.Backlog{Pending: n(13), Retrying: n(2), Held: n(3), Parked: n(1)}, got)
		assert.Equal(t, n(18), got.Unsent())

		got = figures(2)
		most := outbox.Count{N: 2, AtLeast: true}
		assert.Equal(t, []outbox.Count{most, n(2), most, n(1)}, []outbox.Count{got.Pending, got.Retrying, got.Held, got.Parked})
		assert.Equal(t, outbox.Count{N: 6, AtLeast: true}, got.Unsent())
		assert.Equal(t, n(18), figures(math.MaxInt).Unsent())
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
			assert.WithinRange(t, r.Until, r.StartedAt, time.Now().Add(16*time.Second))
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
		db.Do(t, `INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'dead', 1, 2)`)
		db.Do(t, `UPDATE millrace_outbox_shards SET owner = 7 WHERE shard = 3`)
		l = layout()
		assert.Equal(t, outbox.Shard{Number: 3, Owner: 7, Relay: "dead"}, l.Shards[3])
		assert.False(t, l.Relays[0].Alive)
		assert.Equal(t, shards, l.Unowned())
	}},
}

func TestWhatAMessageCausedIsFound(t *testing.T) {
	testdb.Conformance(t, causedBodies)
}

var causedBodies = []testdb.Body{
	{Name: "what a handler stored", Why: "published and returned messages name the message that was handled, others name none", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db)
		s := o.serve(millrace.Inbox{Store: o.store, Outbox: o.out}.AddTo)
		s.router.AddHandler("billing", "orders", s.source, "invoices", o.out,
			func(msg *message.Message) ([]*message.Message, error) {
				tx, err := inbox.Tx(msg.Context())
				require.NoError(t, err)
				require.NoError(t, o.put(outbox.WithTx(t.Context(), tx), "a stranger's"))
				require.NoError(t, o.put(msg.Context(), "a", "b"))
				return carried(msg.Context(), "returned"), nil
			})
		s.run()
		began, first, second := time.Now(), newOrder(), newOrder()
		s.deliver("orders", first)
		require.NoError(t, outbox.InTx(t.Context(), db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
			return o.put(ctx, "of InTx")
		}))
		assert.Equal(t, []string{"a", "b", "returned"}, o.caused(first.UUID))
		assert.Empty(t, o.caused(second.UUID))
		assert.Empty(t, o.caused(first.UUID+" "), "another key")

		entries, err := o.out.CausedBy(t.Context(), "billing", first.UUID, began, time.Now())
		require.NoError(t, err)
		require.Len(t, entries, 3)
		stored := entries[0].StoredAt
		entries, err = o.out.CausedBy(t.Context(), "billing", first.UUID, stored, stored)
		require.NoError(t, err)
		require.Len(t, entries, 3)
		assert.Equal(t, "invoices", entries[2].Topic)
		assert.Equal(t, outbox.Pending, entries[2].State)
		assert.WithinDuration(t, time.Now(), entries[2].StoredAt, time.Minute)
		assert.Zero(t, entries[2].SentAt)

		run := o.relay(func(c *outbox.RelayConfig) { c.Retention = time.Hour })
		rig.Eventually(o, "all are sent", func() bool { return o.kept() == 5 })
		require.NoError(t, run.stop())
		entries, err = o.out.CausedBy(t.Context(), "billing", first.UUID, stored, stored)
		require.NoError(t, err)
		require.Len(t, entries, 3)
		assert.Equal(t, "SENT", entries[0].State.String())
		assert.WithinDuration(t, time.Now(), entries[0].SentAt, time.Minute)
	}},
	{Name: "any key", Why: "a key that is not text must not keep the handler from publishing", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db)
		h := o.handler(func(msg *message.Message) ([]*message.Message, error) {
			return nil, o.put(msg.Context(), "of "+msg.Metadata.Get("n"))
		}, func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("k") })
		for n, key := range map[string]string{"1": "a/\x00\xff'b", "2": "ключ", "3": string(make([]byte, 500))} {
			msg := newOrder()
			msg.Metadata.Set("n", n)
			msg.Metadata.Set("k", key)
			_, err := h(msg)
			require.NoError(t, err)
		}
		assert.Equal(t, []string{"of 1"}, o.caused("a/\x00\xff'b"))
		assert.Equal(t, []string{"of 2"}, o.caused("ключ"))
	}},
	{Name: "among others", Why: "the time is found by the primary key, whatever rows are gone", Run: func(t *testing.T, db *testdb.DB) {
		o := newOffice(t, db)
		const n = 300
		began := time.Now().Add(-n * time.Minute)
		for i := range n {
			db.Do(t, `INSERT INTO millrace_outbox (id, key_hash, created_at, topic, uuid, cause) VALUES (?, 1, ?, 'orders', ?, ?)`, 100+i*i, began.Add(time.Duration(i)*time.Minute).UnixMicro(), "row", "billing/x")
		}
		db.Do(t, `DELETE FROM millrace_outbox WHERE id > 10000 AND id < 20000`)
		at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
		assert.Len(t, o.causedAt("x", at(10), at(20)), 11)
		assert.Len(t, o.causedAt("x", at(0), at(0)), 1)
		assert.Len(t, o.causedAt("x", at(n-1), at(n-1)), 1)
		assert.Empty(t, o.causedAt("x", at(-10), at(-5)))
		assert.Empty(t, o.causedAt("x", at(n+5), at(n+10)))
		assert.Empty(t, o.causedAt("x", at(110), at(120)), "they are gone")
		assert.Empty(t, o.causedAt("y", at(10), at(20)))
		o.clear()
		assert.Empty(t, o.causedAt("x", at(10), at(20)), "the outbox is empty")
	}},
}

// caused are the UUIDs of what a message of billing caused in the last minute.
func (o *office) caused(key string) []string {
	o.Helper()
	return o.causedAt(key, time.Now().Add(-time.Minute), time.Now().Add(time.Minute))
}

func (o *office) causedAt(key string, from, until time.Time) []string {
	o.Helper()
	entries, err := o.out.CausedBy(o.Context(), "billing", key, from, until)
	require.NoError(o, err)
	uuids := []string{}
	for _, e := range entries {
		uuids = append(uuids, e.UUID)
	}
	return uuids
}

// kept counts what was sent and is kept.
func (o *office) kept() int {
	o.Helper()
	return o.db.Count(o, `SELECT COUNT(*) FROM millrace_outbox WHERE status = 4`)
}

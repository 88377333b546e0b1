package gate_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestAggregatesThatWaitAreListed(t *testing.T) {
	testdb.Conformance(t, waitingBodies)
}

func (b *bed) waiting(f admin.ConsumerFilter, after string, limit int) []admin.WaitingAggregate {
	b.Helper()
	all, err := admin.New(b.store).Waiting(b.Context(), f, after, limit)
	require.NoError(b, err)
	return all
}

// wait has aggregates with these ids hold so many messages, without handling them.
func (b *bed) wait(consumer int, held int, ids ...string) {
	b.Helper()
	tx, err := b.db.BeginTxx(b.Context(), nil)
	require.NoError(b, err)
	defer tx.Rollback() //nolint:errcheck // committed below
	for _, id := range ids {
		for i := range held {
			_, err := tx.ExecContext(b.Context(), tx.Rebind(`INSERT INTO millrace_messages
				(consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, aggregate, version)
				VALUES (?, ?, 7, ?, ?, ?, ?, 1, ?, 1, ?, ?)`),
				consumer, []byte(fmt.Sprint("\x02", consumer, id, i)), []byte("t"), []byte("u"), []byte{0}, []byte("p"),
				1000+i, append([]byte{2}, id...), i+5)
			require.NoError(b, err)
		}
	}
	require.NoError(b, tx.Commit())
}

var waitingBodies = []testdb.Body{
	{Name: "what waits for which version", Why: "an operator must know what is missing, and since when", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{MaxHeld: 3}, handler)
		must(t, h, change("a", 1), change("a", 4), change("a", 3), change("a", 6), change("a", 7), change("b", 2), change("c", 1))
		require.Equal(t, 4, b.open(admin.Held))
		require.Equal(t, 1, b.open(admin.Parked))
		all := b.waiting(admin.ConsumerFilter{}, "", 10)
		require.Len(t, all, 2)
		for i := range all {
			assert.WithinDuration(t, time.Now(), all[i].Since, time.Minute)
			assert.NotEmpty(t, all[i].Cursor)
		}
		oldest := b.count(`SELECT received_at FROM millrace_messages WHERE version = 4`)
		assert.Equal(t, time.UnixMicro(int64(oldest)).UTC(), all[0].Since, "of version 4, which came first")
		held := func(a admin.WaitingAggregate) string {
			return fmt.Sprint(a.Consumer, a.Epoch, a.Aggregate, " holds ", a.Held, " from ", a.Lowest, " behind ", a.Applied)
		}
		assert.Equal(t, "projection0a holds 3 from 3 behind 1", held(all[0]))
		assert.Equal(t, "projection0b holds 1 from 2 behind 0", held(all[1]))
		assert.Len(t, b.waiting(admin.ConsumerFilter{Consumer: consumer}, "", 10), 2)
		one := 1
		assert.Empty(t, b.waiting(admin.ConsumerFilter{Epoch: &one}, "", 10))
		assert.Empty(t, b.waiting(admin.ConsumerFilter{Consumer: "mail"}, "", 10))

		must(t, h, change("a", 2))
		assert.Equal(t, "a", b.waiting(admin.ConsumerFilter{}, "", 10)[0].Aggregate, "6 waits for 5")
		must(t, h, change("b", 1))
		assert.Len(t, b.waiting(admin.ConsumerFilter{}, "", 10), 1, "what was released does not wait")
	})},
	{Name: "pages of aggregates", Why: "none is missing, none comes twice, and a large one does not stop the rest", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var want []string
		for _, name := range []string{"one", "two"} {
			h := millrace.Inbox{Store: b.store, Consumer: name}.Middleware(handler)
			must(t, h, change("none", 1))
			id := b.count(`SELECT id FROM millrace_consumers WHERE name = ?`, []byte(name))
			b.wait(id, 99, "a", "b")
			b.wait(id, 100, "c")
			b.wait(id, 3, "d", "e")
			b.wait(id, 1203, "f")
			b.wait(id, 1, "g")
			for _, a := range []string{"a 99", "b 99", "c 100", "d 3", "e 3", "f 100+", "g 1"} {
				want = append(want, name+" "+a)
			}
		}
		for _, limit := range []int{1, 2, 5, 100} {
			var got []string
			for after := ""; ; {
				page := b.waiting(admin.ConsumerFilter{}, after, limit)
				if len(page) == 0 {
					break
				}
				require.LessOrEqual(t, len(page), limit)
				for _, a := range page {
					got = append(got, fmt.Sprint(a.Consumer, " ", a.Aggregate, " ", a.Held))
					assert.Equal(t, int64(5), a.Lowest)
					assert.Equal(t, time.UnixMicro(1000).UTC(), a.Since)
				}
				after = page[len(page)-1].Cursor
			}
			got = slices.Clone(got)
			for i := range got { // one that fills a page may have more, or not
				if got[i] == "one c 100+" || got[i] == "two c 100+" {
					got[i] = got[i][:len(got[i])-1]
				}
			}
			assert.Equal(t, want, got, "pages of %d", limit)
		}
		for _, wrong := range []string{"?", "AAAA", "AAAAAAAA"} {
			_, err := admin.New(b.store).Waiting(t.Context(), admin.ConsumerFilter{}, wrong, 10)
			require.ErrorContains(t, err, "the cursor is not one of these consumers", wrong)
		}
		_, err := admin.New(b.store).Waiting(t.Context(), admin.ConsumerFilter{}, "", 0)
		require.ErrorContains(t, err, "is not between")
	})},
	{Name: "activity at the gate", Why: "what is held, stale or parked there is counted, by whomever", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.newStore(b.db.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		b.queued(store)
		h := b.gated(store, millrace.VersionGate{MaxHeld: 1, HeldFor: time.Hour}, handler)
		must(t, h, change("a", 1), change("a", 1), change("a", 3), change("a", 4), change("a", 0))
		b.exec(`UPDATE millrace_messages SET due_at = 1 WHERE status = 7`)
		stop := rig.Work(t, store)
		rig.Eventually(b, "what was held too long is parked", func() bool { return b.open(admin.Held) == 0 })
		stop()
		var sum admin.Activity
		all, err := admin.New(b.store).Activity(t.Context(), time.Now().Add(-time.Hour))
		require.NoError(t, err)
		for _, a := range all {
			sum.Completed += a.Completed
			sum.Failed += a.Failed
			sum.Duplicates += a.Duplicates
			sum.Stale += a.Stale
			sum.Held += a.Held
			sum.Parked += a.Parked
		}
		assert.Equal(t, b.told(), sum)
		assert.Equal(t, int64(1), sum.Held)
		assert.Positive(t, sum.Parked)
	})},
}

// told is the activity of which observers were told.
func (b *bed) told() admin.Activity {
	n := func(kind string) int64 { return int64(b.events.Count(kind)) }
	return admin.Activity{
		Completed: n("completed"), Failed: n("failed"), Duplicates: n("duplicate"), Stale: n("stale"), Held: n("held"), Parked: n("parked"),
	}
}

// exec runs a statement on the tables.
func (b *bed) exec(query string, args ...any) { b.Helper(); b.db.Do(b, query, args...) }

// A look, every ten seconds, parks thousands that were held too long: at a hundred a look the test would run out of patience.
func TestManyAreHeldTooLong(t *testing.T) {
	t.Parallel()
	if !testdb.Long() {
		t.Skip("it waits for a look: MILLRACE_TEST_LONG=1")
	}
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		const many = 3000
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler), change("a", 2))
		b.db.Do(t, fmt.Sprintf(`
			INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash,
				aggregate, version, received_at, due_at)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 99)
			SELECT m.consumer, %s, m.status, m.topic, m.uuid, m.metadata, m.payload, m.payload_hash, %s, 2, m.received_at, m.due_at
			FROM millrace_messages m
			CROSS JOIN (SELECT a.j * 100 + b.j AS i FROM n a CROSS JOIN n b WHERE a.j * 100 + b.j < %d) numbers`,
			b.db.Bytes("i"), b.db.Bytes("i % 50"), many-1))
		go func() { assert.NoError(t, b.store.Run(t.Context())) }()
		rig.Eventually(b, "all are parked", func() bool { return b.open(admin.Parked) == many })
		rig.Eventually(b, "all are told", func() bool { return b.events.Count("parked") == many })
		assert.Contains(t, b.events.Last("parked").Err.Error(), "held too long: its predecessor, version 1")
	}))
}

// A consumer for which the look fails does not keep it from those behind.
func TestWhatIsHeldTooLongBehindAConsumerThatFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, name := range []string{"first", "second"} {
			rig.Queue(b, b.store, inbox.QueueConfig{Consumer: name})
			h := millrace.Inbox{Store: b.store, Consumer: name}.Middleware(millrace.VersionGate{HeldFor: time.Millisecond}.Middleware(handler))
			must(t, h, change("a", 2))
		}
		pool := faults.Open(t, b.db)
		var looks atomic.Int64
		pool.Set(faults.Plan{Before: faults.At("AS expired", func() error {
			if looks.Add(1)%2 == 1 { // that for the first of the two
				return errFails
			}
			return nil
		})})
		look := b.newStore(pool.DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "one is parked", func() bool { return b.events.Count("parked") == 1 })
		assert.Equal(t, "second", b.events.Last("parked").Consumer)
	}))
}

// The look waits for nobody who has the row of a message, such as an operator.
func TestWhatIsHeldTooLongAndInSomebodysHands(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		b.queued(b.store)
		taken := change("b", 2)
		must(t, b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler), change("a", 2), taken, change("c", 2))
		id := b.count(`SELECT id FROM millrace_messages WHERE uuid = ?`, []byte(taken.UUID))
		tx, err := b.db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback() //nolint:errcheck // it is rolled back below
		require.NoError(t, tx.GetContext(t.Context(), &id, tx.Rebind(`SELECT id FROM millrace_messages WHERE id = ? FOR UPDATE`), id))
		look := b.newStore(b.db.Open(t).DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "the others are parked", func() bool { return b.open(admin.Parked) == 2 })
		require.NoError(t, tx.Rollback())
		rig.Eventually(b, "this one is parked, too", func() bool { return b.open(admin.Parked) == 3 })
	})
}

// The look waits for no handler, so that no other handler waits for the look.
func TestWhatIsHeldTooLongBehindASlowHandler(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		b.queued(b.store)
		holds := b.gated(b.store, millrace.VersionGate{HeldFor: time.Millisecond}, handler)
		for _, aggregate := range []string{"b0", "b1", "b2", "z"} {
			must(t, holds, change(aggregate, 2))
		}
		finish := b.slowly(millrace.VersionGate{}, func(*message.Message) ([]*message.Message, error) { return nil, errFails }, change("z", 1))
		look := b.newStore(b.db.Open(t).DB, inbox.Config{PurgeInterval: 10 * time.Millisecond})
		go func() { assert.NoError(t, look.Run(t.Context())) }()
		rig.Eventually(b, "the others are parked", func() bool { return b.open(admin.Parked) == 3 })
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("b1", 1))
		assert.Equal(t, 1, b.open(admin.Held), "z is left")
		require.ErrorIs(t, finish(), errFails)
		rig.Eventually(b, "z is parked, too", func() bool { return b.open(admin.Parked) == 4 })
	})
}

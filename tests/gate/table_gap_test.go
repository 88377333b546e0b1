package gate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// gapBodies: what becomes of a message that comes before its predecessor.
var gapBodies = []testdb.Body{
	{Name: "held until the predecessor", Why: "too early: stored, acked, and released by the predecessor", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{}, handler)
		third := change("a", 3)
		must(t, h, again(third), change("a", 4), change("b", 1))
		assert.Equal(t, 2, b.open(admin.Held))
		assert.Equal(t, upTo(1), b.applied("b"), "only its own aggregate waits")
		must(t, h, again(third))
		assert.Equal(t, 1, b.events.Count("duplicate"), "a copy of a held one is acked")
		held, err := admin.New(b.store).Find(t.Context(), admin.Filter{Status: admin.Held}, 0, 10)
		require.NoError(t, err)
		require.Len(t, held, 2)
		assert.Equal(t, int64(3), held[0].Version)
		assert.Contains(t, held[0].Reason, `waits for version 1 of aggregate "a"`)

		must(t, h, change("a", 1))
		assert.Equal(t, 2, b.open(admin.Held), "still waiting for version 2")
		must(t, h, change("a", 2))
		assert.Equal(t, 1, b.open(admin.Received), "version 3 is due")
		assert.Equal(t, 1, b.open(admin.Held))
		assert.Equal(t, 1, b.events.Count("released"))
	})},
	{Name: "held with a long aggregate", Why: "what a message brings does not keep it from being stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		runs := 0
		h := b.gated(b.store, millrace.VersionGate{}, func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
		long := strings.Repeat("a", 100_000)
		must(t, h, change(long, 2))
		assert.Equal(t, 1, b.open(admin.Held))
		must(t, h, change(long, 1))
		assert.Equal(t, 1, b.open(admin.Received), "its predecessor was applied")
		assert.Equal(t, 1, runs)
	})},
	{Name: "hold without a queue", Why: "what nothing would deliver is not held", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		rig.MustFail(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 2), inbox.ErrNoQueue)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))
	})},
	{Name: "latest only, without a queue", Why: "nothing delivers what was held, so a copy of it is handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		first := b.process()
		b.queued(first)
		third, fourth := change("a", 3), change("a", 4)
		must(t, b.gated(first, millrace.VersionGate{}, handler), change("a", 1), again(third), again(fourth))
		require.Equal(t, 2, b.open(admin.Held))

		log := watermill.NewCaptureLogger()
		h := b.gated(b.newStore(b.db.Open(b).DB, inbox.Config{Logger: log}), millrace.VersionGate{OnGap: inbox.GapLatest}, handler)
		must(t, h, change("a", 2))
		assert.Equal(t, 2, b.open(admin.Received))
		assert.True(t, log.HasError(inbox.ErrNotServed))
		must(t, h, again(fourth), again(third), again(fourth))
		assert.Equal(t, []int64{1, 2, 4}, b.applied("a"), "3 is stale")
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	})},
	{Name: "a gap that fails", Why: "a delay, then a GapError; nothing is kept", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapFail}, handler)
		began := time.Now()
		second := change("a", 2)
		assert.Equal(t, inbox.GapError{Aggregate: "a", Version: 2, Current: 0}, mustGap(t, h, again(second)))
		assert.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		must(t, h, change("a", 1), again(second))
		assert.Equal(t, upTo(2), b.applied("a"))
	})},
	{Name: "a middleware between inbox and gate", Why: "a message that waits has not failed there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		letters, failures := &rig.Publisher{}, atomic.Int32{}
		poison, err := wmiddleware.PoisonQueue(letters, "letters")
		require.NoError(t, err)
		counting := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := h(msg)
				if err != nil {
					failures.Add(1)
				}
				return produced, err
			}
		}
		between := millrace.Inbox{Store: b.store, Consumer: consumer, Timeout: 2 * rig.Patience, Options: inbox.Options{TwinWait: rig.Patience}}
		h := between.Middleware(poison(counting(millrace.VersionGate{OnGap: inbox.GapFail}.Middleware(handler))))
		var all sync.WaitGroup
		for _, i := range rand.Perm(10) {
			all.Go(func() {
				msg := change("a", int64(i+1))
				rig.Eventually(b, "it is applied", func() bool { _, err := h(again(msg)); return err == nil })
			})
		}
		all.Wait()
		assert.Equal(t, upTo(10), b.applied("a"))
		assert.Zero(t, failures.Load())
		assert.Empty(t, letters.Messages())
	})},
	{Name: "a gap that another process closes", Why: "it may last for a time, however often the message comes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{OnGap: inbox.GapFail}
		h, second := b.gated(b.store, gate, handler), change("a", 2)
		for range 4 {
			mustGap(t, h, again(second))
		}
		must(t, b.gated(b.process(), gate, handler), change("a", 1))
		must(t, h, again(second))
		assert.Equal(t, upTo(2), b.applied("a"))
	})},
	{Name: "a gap that nothing closes", Why: "repeated gaps are recognised, not spun on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapFail, GapFor: 300 * time.Millisecond}, handler)
		second, returns := change("a", 2), 0
		for b.open(admin.Parked) == 0 {
			if _, err := h(again(second)); err != nil {
				returns++
			}
			require.Less(t, returns, 5)
		}
		assert.Contains(t, b.events.Last("parked").Err.Error(), "waits for version 1, which was not applied within GapFor, 300ms")
	})},
	{Name: "a gap behind which nothing comes", Why: "who has seen that once stops a source no longer than it takes to see it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapFail, GapFor: 900 * time.Millisecond}, handler)
		returns := func(second *message.Message) (n int) {
			for before := b.open(admin.Parked); ; n++ {
				if _, _ = h(again(second)); b.open(admin.Parked) > before {
					return n
				}
			}
		}
		returns(change("a", 2))
		assert.Equal(t, 3, returns(change("b", 2)))
		assert.Contains(t, b.events.Last("parked").Err.Error(), "and nothing else meanwhile")
	})},
	{Name: "a gap in the table", Why: "it need not go back to its source, which is us", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.line(nil, change("a", 2))
		b.ordered(millrace.VersionGate{OnGap: inbox.GapFail, GapFor: time.Hour}, nil)
		rig.Eventually(b, "it is held", func() bool { return b.open(admin.Held) == 1 })
		assert.Equal(t, 1, b.events.Count("gap"))
	})},
	{Name: "many copies at a gap", Why: "copies that are in flight at once are no message that comes back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.gated(b.store, millrace.VersionGate{OnGap: inbox.GapFail}, handler)
		const copies = 8
		inFlight := func(aggregate string) bool { // all at once, or the machine was too busy for that
			second, end := change(aggregate, 2), make(chan error, copies)
			parked := b.open(admin.Parked)
			var began atomic.Int64
			for range copies {
				go func() {
					began.Add(1)
					_, err := h(again(second))
					end <- err
				}()
			}
			errs := []error{<-end}
			together := began.Load() == copies
			for range copies - 1 {
				errs = append(errs, <-end)
			}
			if !together {
				return false
			}
			for _, err := range errs {
				var gap *inbox.GapError
				require.ErrorAs(t, err, &gap)
			}
			assert.Equal(t, parked, b.open(admin.Parked))
			must(t, h, change(aggregate, 1), again(second))
			assert.Equal(t, upTo(2), b.applied(aggregate))
			return true
		}
		tries := 0
		rig.Eventually(b, "all copies are in flight at once", func() bool { tries++; return inFlight(fmt.Sprint(tries)) })
	})},
	{Name: "more than an aggregate may hold", Why: "past the limit: parked, with a readable reason", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		h := b.gated(b.store, millrace.VersionGate{MaxHeld: 2}, handler)
		must(t, h, change("a", 4), change("a", 3), change("a", 2), change("b", 2))
		assert.Equal(t, 3, b.open(admin.Held))
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Contains(t, b.events.Last("parked").Err.Error(), "for which 2 messages wait already")
	})},
	{Name: "held too long", Why: "then parked, with a readable reason", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.service(b.newStore(b.db.DB, inbox.Config{PurgeInterval: 50 * time.Millisecond}), millrace.VersionGate{HeldFor: time.Millisecond}, handler)
		s.publish(change("a", 2))
		rig.Eventually(b, "it is parked", func() bool { return b.events.Count("parked") == 1 })
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Contains(t, b.events.Last("parked").Err.Error(), `version 1 of aggregate "a", was not applied in time`)
		parked := rig.Parked(t, b.store)[0]
		history := rig.Story(t, b.store, parked.MessageID).History
		require.Len(t, history, 2)
		assert.Equal(t, []admin.Status{admin.Held, admin.Parked}, []admin.Status{history[0].Status, history[1].Status})
		assert.Equal(t, parked.Reason, history[1].Reason)
	})},
}

// A copy goes past the table while the message lies there, not delivered yet: the stored one is held, or
// parked, in its turn.
func TestACopyOfWhatIsStored(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		h := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware(
			millrace.VersionGate{}.Middleware(handler))
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		replayed := change("b", 1)
		replayed.Metadata.Set(inbox.ReplayField, "again")
		became := map[string]admin.Status{}
		msgs := []*message.Message{change("a", 2), change("a", 0), replayed}
		for i, status := range []admin.Status{admin.Held, admin.Parked, admin.Parked} {
			became[msgs[i].UUID] = status
			require.NoError(t, queue.Put(t.Context(), "changes", again(msgs[i])))
			must(t, h, again(msgs[i]))
			other := message.NewMessage(msgs[i].UUID, []byte("another payload"))
			other.Metadata = msgs[i].Copy().Metadata
			rig.MustFail(t, h, other, "another payload is stored under the key")
		}
		assert.Equal(t, len(msgs), b.events.Count("duplicate"))
		assert.Equal(t, len(msgs), b.open(admin.Received))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))

		leased, err := queue.HandOut(t.Context(), rig.Take(t, queue, 10)...)
		require.NoError(t, err)
		require.Len(t, leased, len(msgs))
		for _, l := range leased {
			msg, err := l.Message(t.Context())
			require.NoError(t, err)
			must(t, h, msg)
		}
		for _, m := range rig.Find(t, b.store, admin.Filter{}) {
			assert.Equal(t, became[m.UUID], m.Status)
		}
		assert.Empty(t, b.applied("a"))
	}))
}

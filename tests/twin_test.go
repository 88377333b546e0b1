package tests_test

import (
	"context"
	"errors"
	"strings"
	"sync"
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

// twinBodies: copies of one message in two processes at the same moment. Where the
// database admits one writer, the second waits before it begins.
var twinBodies = []testdb.Body{
	{Name: "two copies at the same moment", Why: "the second waits for the first's commit, and is a duplicate", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, running, goOn := rig.Halted(effect)
		msg := newMessage("x")
		first := rig.Handle(b.inbox(h), again(msg))
		<-running
		second := rig.Handle(b.inbox(effect, on(b.process())), again(msg))
		b.untilSomeoneWaits()
		goOn()
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "two copies, the first fails", Why: "the second then handles the message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, running, goOn := rig.Halted(halfDone)
		msg := newMessage("x")
		first := rig.Handle(b.inbox(h, recorded), again(msg))
		<-running
		second := rig.Handle(b.inbox(effect, on(b.process())), again(msg))
		b.untilSomeoneWaits()
		goOn()
		require.ErrorIs(t, <-first, errBoom)
		require.NoError(t, <-second)
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
	})},
	{Name: "a late failure record", Why: "a failure record takes the claim first, so it never touches a twin's", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		store := b.newStore(pool.DB, inbox.Config{})
		failing := b.inbox(func(msg *message.Message) ([]*message.Message, error) { return nil, errBoom },
			on(store), recorded)
		rig.MustFail(t, failing, newMessage("warm up"), errBoom)

		msg := newMessage("x")
		twin := b.inbox(effect, on(b.process()))
		pool.Set(faults.Plan{After: faults.At(faults.Rollback, func() error { // the handler failed; its record is not written yet
			pool.Set(faults.Plan{})
			must(t, twin, again(msg))
			return nil
		})})
		rig.MustFail(t, failing, again(msg), errBoom)
		assert.Equal(t, 1, b.effectsOf(msg.UUID))
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Claims, 1)
		assert.True(t, story.Claims[0].Completed, "the record flipped the twin's claim")
		assert.Empty(t, story.Open)
	})},
	{Name: "a twin of a message that is being parked", Why: "a waiting twin must see the open row, not run beside it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.forgotten(msg)
		judging, goOn := make(chan struct{}), make(chan struct{})
		first := rig.Handle(b.inbox(effect, func(i *millrace.Inbox) {
			i.MessageTime = func(msg *message.Message) (time.Time, bool) { // called with the claim held
				close(judging)
				<-goOn
				return longAgo(msg)
			}
		}), again(msg))
		<-judging
		second := rig.Handle(b.inbox(effect, on(b.process()), func(i *millrace.Inbox) {
			i.MessageTime = func(*message.Message) (time.Time, bool) { return time.Time{}, false }
		}), again(msg))
		b.untilSomeoneWaits()
		close(goOn)
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		assert.Equal(t, 0, b.effects(), "the twin ran a message that was parked")
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.Parked))
	})},
	{Name: "TwinWait runs out", Why: "a copy waits in a transaction of its own, bounded, and leaves nothing behind", Run: func(t *testing.T, db *testdb.DB) {
		impatient := *db
		impatient.DSN = strings.Replace(db.DSN, "busy_timeout(10000)", "busy_timeout(200)", 1)
		b := newBed(t, db)
		h, running, goOn := rig.Halted(alwaysFails)
		defer goOn()
		second := b.inbox(effect, on(b.newStore(impatient.Open(t).DB, inbox.Config{})),
			func(i *millrace.Inbox) { i.TwinWait, i.Timeout = 300*time.Millisecond, time.Hour })
		msg := newMessage("x")
		first := rig.Handle(b.inbox(h), again(msg))
		<-running
		err := rig.Within(t, rig.Handle(second, again(msg)), "the copy waits for as long as the handler runs")
		require.ErrorIs(t, err, inbox.ErrInProgress)
		goOn()
		require.ErrorIs(t, <-first, errBoom)
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_claims`), "the claim that gave up was committed later")
		for _, err = second(again(msg)); errors.Is(err, inbox.ErrInProgress); _, err = second(again(msg)) {
			b.tick() // MariaDB goes on with the statement of a connection that was closed
		}
		require.NoError(t, err)
		assert.Equal(t, 1, b.effects())
	}},
	{Name: "the server ends the wait of a copy", Why: "as with a statement_timeout below TwinWait; the copy was not handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			return // its writers wait in BEGIN, for busy_timeout
		}
		h, running, goOn := rig.Halted(effect)
		msg := newMessage("x")
		first := rig.Handle(b.inbox(h), again(msg))
		<-running
		second := rig.Handle(b.inbox(effect, on(b.process())), again(msg))
		b.db.CutWait(t, "INTO millrace_claims")
		require.ErrorIs(t, <-second, inbox.ErrInProgress)
		assert.Zero(t, b.events.Count("outage"))
		goOn()
		require.NoError(t, <-first)
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a claim purged between conflict and lookup", Why: "the lookup can find nothing: look again, bounded", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		h := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})))
		msg := newMessage("x")
		must(t, b.inbox(effect), again(msg))
		pool.Set(faults.Plan{Before: faults.At("outcome_topic", func() error { // the lookup
			pool.Set(faults.Plan{})
			b.exec(`DELETE FROM millrace_claims`)
			return nil
		})})
		must(t, h, again(msg))
		assert.Equal(t, 2, b.effects(), "a message that nobody remembers is handled")
	})},
	{Name: "a claim purged just before it is made anew", Why: "the purge line is read after the claim", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		msg.Metadata.Set("ce_time", time.Now().Add(-8*day).UTC().Format(time.RFC3339))
		must(t, b.inbox(effect), again(msg))
		b.age(8 * day)
		pool := faults.Open(t, b.db)
		h := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})))
		must(t, h, newMessage("warm up"))
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			early := b.db.Dialect == "sqlite" && call == faults.Begin // later the writer's lock is taken
			if early || strings.Contains(call, "INSERT INTO millrace_claims") {
				pool.Set(faults.Plan{})
				n, err := b.store.Purge(t.Context())
				assert.NoError(t, err)
				assert.Equal(t, 1, n)
			}
			return nil
		}})
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effectsOf(msg.UUID), "handled twice")
		assert.Equal(t, 1, b.events.Count("parked"))
	})},
	{Name: "a hundred copies at once, the first fails", Why: "one effect, no error but the handler's, other messages go on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var runs atomic.Int32
		flaky := func(msg *message.Message) ([]*message.Message, error) {
			if runs.Add(1) == 1 {
				return halfDone(msg)
			}
			return effect(msg)
		}
		msg := newMessage("x")
		var wg sync.WaitGroup
		for range 2 {
			store := on(b.process(testdb.Pool(5)))
			same, others := b.inbox(flaky, store), b.inbox(effect, store)
			wg.Go(func() {
				assert.LessOrEqual(t, failures(50, func() error {
					_, err := same(again(msg))
					if err != nil {
						assert.ErrorIs(t, err, errBoom)
					}
					return err
				}), 1)
			})
			wg.Go(func() {
				assert.Equal(t, 0, failures(20, func() error { _, err := others(newMessage("other")); return err }))
			})
		}
		wg.Wait()
		assert.Equal(t, 1, b.effectsOf(msg.UUID))
		assert.Equal(t, 41, b.effects())
	})},
	{Name: "deadlocks of our own statements", Why: "they are retried unseen, and cost no attempt", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		h := b.inbox(effect, on(b.newStore(pool.DB, inbox.Config{})))
		must(t, h, newMessage("warm up"))
		left := 3
		pool.Set(faults.Plan{Before: faults.At("INSERT INTO millrace_claims", func() error {
			if left--; left >= 0 {
				return faults.Deadlock(b.db.Dialect)
			}
			return nil
		})})
		must(t, h, newMessage("x"))
		assert.Equal(t, 2, b.effects())
		assert.Equal(t, 3, b.events.Count("contention"))
		assert.Equal(t, 0, b.events.Count("failed"))
	})},
	{Name: "a COMMIT that is refused", Why: "nothing was committed: the handler runs again, unseen, and it costs no attempt", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		runs, left := 0, 0
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			runs++
			return effect(msg)
		}, on(b.newStore(pool.DB, inbox.Config{})))
		must(t, h, newMessage("warm up"))
		left = 2
		pool.Set(faults.Plan{Before: faults.At(faults.Commit, func() error {
			if left--; left >= 0 {
				return faults.Deadlock(b.db.Dialect)
			}
			return nil
		})})
		must(t, h, newMessage("x"))
		assert.Equal(t, 2, b.effects())
		assert.Equal(t, 1+3, runs)
		assert.Equal(t, 2, b.events.Count("contention"))
		assert.Equal(t, 0, b.events.Count("failed"))
	})},
}

// untilSomeoneWaits returns when somebody waits with a claim.
func (b *bed) untilSomeoneWaits() { b.Helper(); b.db.UntilWaiting(b, 1, "INTO millrace_claims") }

// tick is the pause between two looks at something that sends no event.
func (b *bed) tick() { <-time.After(10 * time.Millisecond) }

func (b *bed) nothingOpen() {
	b.Helper()
	assert.Equal(b, 0, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	assert.Equal(b, 0, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`))
}

// forgotten makes the consumer one that handled msg long ago and has forgotten it.
func (b *bed) forgotten(msg *message.Message) {
	b.Helper()
	must(b, b.inbox(effectless, on(b.process())), again(msg))
	b.age(8 * day)
	require.Equal(b, 1, rig.Purge(b, b.store))
}

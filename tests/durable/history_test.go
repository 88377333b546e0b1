package durable_test

import (
	"context"
	"fmt"
	"os"
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
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestHistory(t *testing.T) {
	testdb.Conformance(t, historyBodies)
}

// went is the history of a message in short.
func went(story admin.Story) (all []string) {
	for _, e := range story.History {
		all = append(all, fmt.Sprintf("%d %s %s %s", e.Number, e.What(), e.Status, e.Detail()))
	}
	return all
}

// traced knows the trace of a delivery, as the observer of package tracing does.
type traced struct{}

func (traced) Observe(context.Context, inbox.Event) {}

func (traced) TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traced{}).(string)
	return id
}

// traceless knows no trace, and does not say so.
type traceless struct{ traced }

func (traceless) TraceID(context.Context) string { panic("boom") }

// carry has the trace in the context of each delivery.
func carry(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		own := msg.Context()
		defer func() { msg.SetContext(own) }()
		msg.SetContext(context.WithValue(own, traced{}, "trace of "+msg.UUID))
		return h(msg)
	}
}

var historyBodies = []testdb.Body{
	{Name: "a message that is handled in the end", Why: "when it was stored, and each attempt with its error, are kept with its claim", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = rig.NewStore(t, b.db.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{traced{}}})
		for mode := range 2 {
			durable := quick(b.store)
			durable.Mode, durable.MaxAttempts = pubsub.Mode(mode), 3
			s, msg := b.booming(durable, 4, carry), newMessage()
			parked := s.parks(msg)
			require.NoError(t, admin.New(b.store).Retry(t.Context(), parked.ID, ada, nil))
			rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })

			story := rig.Story(t, b.store, msg.UUID)
			assert.Equal(t, []string{
				"1 failed FAILED_RETRYABLE attempt 1: boom 1", "2 failed FAILED_RETRYABLE attempt 2: boom 2",
				"3 failed PARKED attempt 3: boom 3; PARKED: failed 3 times", "4 failed FAILED_RETRYABLE attempt 1: boom 4",
			}, went(story))
			for _, e := range story.History {
				assert.True(t, strings.HasSuffix(e.Process, fmt.Sprint("/", os.Getpid())), e.Process)
				assert.Positive(t, e.Took)
				assert.Equal(t, "trace of "+msg.UUID, e.TraceID)
			}
			assert.Equal(t, parked.ReceivedAt, story.Claims[0].ReceivedAt)
			at := parked.ReceivedAt
			for i, e := range story.History {
				assert.False(t, e.At.Before(at), "in the order in which it happened")
				if at = e.At; i == 2 {
					assert.False(t, story.Audit[0].At.Before(at), "then it was tried again")
				}
			}
			require.NoError(t, s.router.Close())
			b.db.Do(t, `UPDATE millrace_history SET number = number + 10`) // as the release before does
			for _, e := range rig.Story(t, b.store, msg.UUID).History {
				assert.Equal(t, [3]any{"", time.Duration(0), ""}, [3]any{e.Process, e.Took, e.TraceID}, "they are of another entry")
			}
		}
	})},
	{Name: "at most ten", Why: "the newest; and when the message was stored stays", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = rig.NewStore(t, b.db.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{traceless{}}})
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = pubsub.StoreFirst, 99
		s, msg := b.booming(durable, 23), newMessage()
		before := time.Now().Add(-time.Minute)
		s.handles(msg)
		assert.Equal(t, 10, b.count(`SELECT COUNT(*) FROM millrace_history`))
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.History, 10)
		for i, e := range story.History {
			assert.Equal(t, 14+i, e.Number)
			assert.Equal(t, fmt.Sprint("boom ", 14+i), e.Error)
			assert.Empty(t, e.TraceID)
		}
		assert.True(t, story.Claims[0].ReceivedAt.Before(story.History[0].At) && story.Claims[0].ReceivedAt.After(before))
	})},
	{Name: "a message that is handled at once", Why: "it costs nothing: no row and no statement", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool, statements := faults.Open(t, db), atomic.Int32{}
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			check := strings.Contains(call, "pg_class") || strings.Contains(call, "EXPLAIN") // it asks for the rights on all tables
			if strings.Contains(call, "millrace_history") && !check {
				statements.Add(1)
			}
			return nil
		}})
		store := rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true})
		for mode := range 2 {
			durable := quick(store)
			durable.Mode = pubsub.Mode(mode)
			s := b.start(durable, silent(effect), inboxOf(durable), millrace.VersionGate{}.Middleware)
			for n := range 2 {
				msg := stamped(fmt.Sprint("a", mode), int64(n+1))
				s.handles(msg)
				s.handles(msg)
			}
			require.NoError(t, s.router.Close())
		}
		assert.Zero(t, statements.Load())
	}},
	{Name: "a message that was held", Why: "what it waited for is kept, for one statement", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode := range 2 {
			durable := quick(b.store)
			durable.Mode = pubsub.Mode(mode)
			s := b.start(durable, silent(effect), inboxOf(durable), millrace.VersionGate{}.Middleware)
			first, second := stamped(fmt.Sprint(mode), 1), stamped(fmt.Sprint(mode), 2)
			assert.True(t, s.deliver(second))
			rig.Eventually(b, "it is held", func() bool { return b.open(admin.Held) == 1 })
			held := b.only(b.store, admin.Held)
			assert.True(t, s.deliver(first))
			rig.Eventually(b, "both are handled", func() bool { return b.effects(second) == 1 && b.rows() == 0 })
			story := rig.Story(t, b.store, second.UUID)
			assert.Equal(t, []string{fmt.Sprintf(`1 held HELD waits for version 1 of aggregate "%d"`, mode)}, went(story))
			assert.Equal(t, held.ReceivedAt, story.Claims[0].ReceivedAt)
			assert.Empty(t, rig.Story(t, b.store, first.UUID).History)
			require.NoError(t, s.router.Close())
		}
	})},
	{Name: "copies that fail past the table", Why: "each is an attempt at the message that is stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue, msg := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Hour, MaxBackoff: time.Hour}), newMessage()
		for range 2 {
			b.failedStraight(queue, msg.Copy())
		}
		assert.Equal(t, []string{
			"1 failed FAILED_RETRYABLE attempt 1: no reason is known", "2 failed FAILED_RETRYABLE attempt 2: no reason is known",
		}, went(rig.Story(t, b.store, msg.UUID)))
	})},
	{Name: "a message that ends its process", Why: "it gave no answer, and was parked for it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		queue := b.storeIn(inbox.QueueConfig{MaxAttempts: 1}, msg)
		require.NoError(t, rig.Take(t, queue, 1)[0].PutBack(t.Context()))
		assert.Empty(t, rig.Story(t, b.store, msg.UUID).History, "what is put back was not tried")
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		for b.open(admin.Parked) == 0 {
			_, err := queue.HandOut(t.Context(), rig.Take(t, queue, 1)...)
			require.NoError(t, err)
			b.db.Do(t, `UPDATE millrace_messages SET due_at = 1 WHERE status = 2`)
		}
		told := went(rig.Story(t, b.store, msg.UUID))
		require.Len(t, told, 3)
		assert.Equal(t, "1 failed IN_PROGRESS its process gave no answer, and it is tried again alone", told[0])
		assert.Empty(t, rig.Story(t, b.store, msg.UUID).History[0].Process, "which one, nobody knows")
		assert.Contains(t, told[2], "3 parked PARKED tried 1 times, and never answered")
	})},
	{Name: "a collision", Why: "it is parked once, however often it comes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		for range 3 {
			b.storeIn(inbox.QueueConfig{StoreFirst: true}, msg, another(msg))
		}
		parked := b.only(b.store, admin.Parked)
		told := went(rig.Story(t, b.store, parked.MessageID))
		assert.Equal(t, []string{"1 parked PARKED " + parked.Reason}, told)
	})},
	{Name: "what is forgotten", Why: "the history goes with the claim, and moves with it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MaxAttempts = 1
		s, gone, parked := b.booming(durable, 1), newMessage(), newMessage()
		kept := func() int { return b.count(`SELECT COUNT(*) FROM millrace_history`) }
		require.NoError(t, admin.New(b.store).Discard(t.Context(), s.parks(gone).ID, ada))
		assert.Len(t, rig.Story(t, b.store, gone.UUID).History, 1)
		row := s.parks(parked)
		require.NoError(t, s.router.Close())
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = 1`)
		rig.Eventually(b, "one goes with its claim", func() bool { // the service's janitor may be quicker
			rig.Purge(t, b.store)
			return kept() == 1
		})

		other := newMessage()
		b.storeIn(inbox.QueueConfig{Epoch: 1}, other)
		b.db.Do(t, `
			INSERT INTO millrace_history (at, received_at, consumer, number, attempts, slot, status, failed, message_id)
			SELECT 1, 1, c.id, 7, 1, 7, 4, 1, m.message_id
			FROM millrace_messages m
			JOIN millrace_consumers c ON c.epoch = 1
			WHERE m.status = 6`) // as a process of the release before leaves it
		durable.Epoch = 1
		s = b.inboxed(durable, effect)
		rig.Eventually(b, "it moves", func() bool {
			story := rig.Story(t, b.store, parked.UUID)
			return len(story.Claims) == 1 && story.Claims[0].Epoch == 1 && len(story.History) == 1 && story.History[0].Epoch == 1
		})
		require.NoError(t, admin.New(b.store).Retry(t.Context(), row.ID, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(parked) == 1 && b.effects(other) == 1 && b.rows() == 0 })
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, kept())
		require.NoError(t, admin.New(b.store).Forget(t.Context(), consumer, 1, ada))
		assert.Zero(t, kept())
	})},
	{Name: "a message that gets its key later", Why: "its history is that of the key, and begins when it came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		k := b.keyless(keylessConfig{key: byOrder, mode: pubsub.StoreFirst})
		require.True(t, k.deliver(broken("bad")))
		stored := b.only(b.store, admin.FailedTerminal)
		require.NoError(t, admin.New(k.store).ReplacePayload(t.Context(), stored.ID, []byte(`{"order_id":1}`), ada))
		rig.Eventually(b, "a queue serves it", func() bool { return admin.New(k.store).Retry(t.Context(), stored.ID, ada, nil) == nil })
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		story := rig.Story(t, k.store, "\x02n1")
		require.Len(t, went(story), 1)
		assert.Contains(t, went(story)[0], "put back FAILED_RETRYABLE had no key")
		assert.Equal(t, stored.ReceivedAt, story.Claims[0].ReceivedAt)
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_history`))
	})},
}

// TestFailuresAtOnceDoNotMeet: sixteen messages that stand side by side in the key of the history fail at once, again and
// again, at the levels of isolation that servers have by default.
func TestFailuresAtOnceDoNotMeet(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	for name, level := range map[string][]string{
		"mysql": {"tx_isolation", "'REPEATABLE-READ'"}, "postgres": {"default_transaction_isolation", "serializable"}, "sqlite": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, name, testdb.Params(level...))
			b := newBed(t, db)
			pool := faults.Open(t, db)
			pool.SetMaxOpenConns(16)
			queue := rig.Queue(t, rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true}), inbox.QueueConfig{
				Consumer: consumer, MaxAttempts: 99, MinBackoff: time.Microsecond, MaxBackoff: time.Microsecond,
			})
			const many, rounds = 16, 12
			for n := range many {
				require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage(fmt.Sprint("message ", n), nil)))
			}
			var rollbacks atomic.Int32
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if call == faults.Rollback {
					rollbacks.Add(1)
				}
				return nil
			}})
			for range rounds {
				var all sync.WaitGroup
				taken := rig.Take(t, queue, many)
				require.Len(t, taken, many)
				for _, l := range taken {
					all.Go(func() { assert.NoError(t, l.Fail(t.Context())) })
				}
				all.Wait()
			}
			assert.Zero(t, rollbacks.Load(), "nobody was in the way of another")
			assert.Equal(t, 10*many, b.count(`SELECT COUNT(*) FROM millrace_history`))
			assert.Equal(t, many, b.count(`SELECT COUNT(*) FROM millrace_history WHERE number = ?`, rounds))
		})
	}
}

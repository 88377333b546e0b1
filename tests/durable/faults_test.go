package durable_test

import (
	"context"
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

func TestWhatIsStoredIsLostToNobody(t *testing.T) {
	testdb.Conformance(t, lossBodies)
}

var ada = admin.Operator{Name: "ada", Reason: "looked at it"}

// lossBodies: what is stored first is as safe as what failed before it was stored.
var lossBodies = []testdb.Body{
	{Name: "stored first, then parked", Why: "the claim is open: no copy runs, and an operator can act", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = pubsub.StoreFirst, 2
		s := b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return errBoom })
		msg := newMessage()
		parked := s.parks(msg)
		past := millrace.Inbox{Store: b.process(), Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			runs.run(msg)
			return nil, nil
		})
		require.NoError(t, do(past, msg.Copy()))
		assert.Equal(t, 2, runs.of(msg), "a copy that came past the table")
		require.NoError(t, admin.New(b.store).Discard(t.Context(), parked.ID, ada))
		assert.Zero(t, b.rows())
	}},
	{Name: "a deadlock where a message is closed", Why: "the run is undone and made again, and is no attempt", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		pool := faults.Open(t, db)
		var hits atomic.Int32
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "DELETE FROM millrace_messages") && hits.Add(1) <= 2 {
				return faults.Deadlock(db.Dialect)
			}
			return nil
		}})
		durable := quick(b.newStore(pool.DB))
		durable.Mode, durable.MaxAttempts = pubsub.StoreFirst, 1
		s := b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return effect(msg) })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		assert.Equal(t, 3, runs.of(msg))
		assert.Equal(t, 1, b.effects(msg))
	}},
	{Name: "a message is parked, and the answer to that commit is lost", Why: "it is told all the same", Run: func(t *testing.T, db *testdb.DB) {
		b, pool, events := newBed(t, db), faults.Open(t, db), &rig.Events{}
		var moving sync.Map
		var lost atomic.Bool
		pool.Set(faults.Plan{
			Before: func(ctx context.Context, call string) error {
				if strings.Contains(call, "reason_code = 0") && strings.Contains(call, "lease_token = 0") {
					moving.Store(faults.Connection(ctx), true)
				}
				return nil
			},
			After: func(ctx context.Context, call string) error {
				if call == faults.Commit {
					if _, moved := moving.LoadAndDelete(faults.Connection(ctx)); moved && lost.CompareAndSwap(false, true) {
						return faults.ErrLost
					}
				}
				return nil
			},
		})
		store := rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true, Observers: []inbox.Observer{events}, Logger: events})
		durable := storeFirst(store)
		durable.MaxAttempts = 1
		calls := countOnPark(&durable)
		s := b.inboxed(durable, func(*message.Message) error { return errBoom })
		assert.True(t, s.deliver(newMessage()))
		rig.Eventually(b, "it is told", func() bool { return events.Count("parked") > 0 })
		require.NoError(t, s.router.Close())
		assert.True(t, lost.Load())
		assert.Equal(t, 1, events.Count("parked"))
		assert.Equal(t, 1, events.Last("parked").Attempt)
		assert.Equal(t, int32(1), calls.Load(), "OnPark")
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.NotContains(t, strings.Join(events.Logs(), "\n"), "took stored messages over")
	}},
	{Name: "a database that fails once where messages are fetched, and once where they are handed out", Why: "they wait for a second, not for Poll", Run: func(t *testing.T, db *testdb.DB) {
		b, pool := newBed(t, db), faults.Open(t, db)
		var fetched, handedOut atomic.Int32
		var held atomic.Bool
		goOn := make(chan struct{})
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			switch {
			case strings.Contains(call, "CASE WHEN status = 3") && fetched.Add(1) == 1:
				return errBoom
			case strings.Contains(call, "SET status = 2, due_at") && handedOut.Add(1) == 1:
				close(goOn)
				return errBoom
			}
			return nil
		}})
		require.NoError(t, rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer}).Put(t.Context(), "orders", newMessages(20)...))
		durable := quick(b.newStore(pool.DB))
		durable.Poll, durable.Lease, durable.Concurrency = time.Hour, time.Minute, 2
		b.start(durable, silent(func(*message.Message) error {
			if held.CompareAndSwap(false, true) { // the other hand is given more than it can hold
				rig.Within(b, goOn, "messages are handed out")
			}
			return nil
		}))
		rig.Eventually(b, "all are handled", func() bool { return b.rows() == 0 })
		assert.Positive(t, fetched.Load())
	}},
	{Name: "a copy of what was handled, while another payload waits", Why: "it collides with nothing: the other one is parked, and the copy is none", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msg := b.inboxed(storeFirst(b.store), effect), newMessage()
		s.handles(msg)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), consumer, 0, ada))
		require.True(t, s.deliver(another(msg)))
		require.True(t, s.deliver(msg), "a copy")
		assert.Equal(t, 1, b.rows(), "the other payload")
		require.NoError(t, admin.New(b.store).Resume(t.Context(), consumer, 0, ada))
		rig.Eventually(b, "the other payload is parked", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		assert.Equal(t, "another", string(b.only(b.store, admin.Parked).Payload))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "settings that do not fit together", Why: "they spend no attempts of messages that are not at fault", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		taken := b.takes(b.storeIn(inbox.QueueConfig{MaxAttempts: 1}, newMessage()), 1)
		msg, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		other := millrace.Inbox{Store: b.store, Consumer: "other"}.Middleware(silent(effect))
		require.ErrorContains(t, do(other, msg), "the same Store, Consumer and Epoch")
		require.NoError(t, taken[0].Fail(t.Context()))
		assert.Zero(t, b.open(admin.Parked))
		assert.Zero(t, b.count(`SELECT attempts FROM millrace_messages`))
	})},
	{Name: "a service that closes, without Inbox", Why: "a failure whose delivery was cancelled is no attempt, and stays with its source", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		entered := make(chan struct{})
		s := b.start(quick(b.store), func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		})
		acked := make(chan bool)
		go func() { acked <- s.deliver(newMessage()) }()
		<-entered
		require.NoError(t, s.router.Close())
		assert.False(t, <-acked)
		assert.Zero(t, b.rows())
	})},
}

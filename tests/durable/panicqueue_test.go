package durable_test

import (
	"context"
	"runtime"
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

// TestAQueueOutlives: functions that only a queue of its own is given, or that need a process that ends.
func TestAQueueOutlives(t *testing.T) {
	testdb.Conformance(t, outlivedBodies)
}

var outlivedBodies = []testdb.Body{
	{Name: "a Describe that panics in a queue", Why: "the message is stored without a type, and so are those beside it", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		pool := db.Open(t)
		pool.SetMaxOpenConns(2)
		store := b.newStore(pool.DB)
		q := rig.Queue(t, store, inbox.QueueConfig{
			Consumer: consumer,
			Describe: func(msg *message.Message) (string, string) { trip(isBad(msg)); return "order", "1" },
		})
		first, good, failed := newBad(bad), newMessage(), newBad(bad+", failed")
		require.NoError(t, q.Put(t.Context(), "orders", first, good))
		b.failedStraight(q, failed)
		types := map[string]string{}
		for _, m := range b.find(admin.Filter{}) {
			types[m.UUID] = m.EventType
		}
		assert.Equal(t, map[string]string{first.UUID: "", good.UUID: "order", failed.UUID: ""}, types)
		assert.Positive(t, store.Panics())
		require.NoError(t, store.Close(t.Context()))
		assert.Zero(t, pool.Stats().InUse)
	}},
	{Name: "an observer that panics at what is taken over", Why: "what a process that gave no answer had is handled all the same", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		other := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, Lease: time.Second})
		msgs := []*message.Message{newBad(bad), newMessage()}
		require.NoError(t, other.Put(t.Context(), "orders", msgs...))
		require.Len(t, rig.TakeOut(t, other, len(msgs), len(msgs)), len(msgs), "they are never answered")
		pool := db.Open(t)
		pool.SetMaxOpenConns(3)
		store := rig.NewStore(t, pool.DB, inbox.Config{Observers: []inbox.Observer{loud(inbox.KindReclaimed)}})
		s := b.inboxed(quick(store), effect)
		rig.Eventually(b, "both are handled", func() bool { return b.effects(msgs[0]) == 1 && b.effects(msgs[1]) == 1 && b.rows() == 0 })
		assert.GreaterOrEqual(t, store.Panics(), int64(1))
		require.NoError(t, s.router.Close())
		require.NoError(t, store.Close(t.Context()))
		rig.Eventually(b, "no connection is in use", func() bool { return pool.Stats().InUse == 0 })
	}},
	{Name: "an observer that panics at an outage which a message without a key meets", Why: "the next delivery asks whether the database is back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		var panics atomic.Bool
		var told atomic.Int32
		store := rig.NewStore(t, pool.DB, inbox.Config{Observers: []inbox.Observer{inbox.On(func(context.Context, inbox.Event) {
			told.Add(1)
			trip(panics.Load())
		}, inbox.KindOutage)}})
		durable := quick(store)
		durable.Key = inbox.ByJSON("order_id")
		s := b.inboxed(durable, effect)
		pool.Set(faults.Plan{Before: faults.Lose("INSERT INTO millrace_messages")})
		for _, panicking := range []bool{false, true} {
			panics.Store(panicking)
			assert.False(t, s.deliver(broken("a")))
		}
		assert.EqualValues(t, 2, told.Load())
		panics.Store(false)
		pool.Set(faults.Plan{})
		s.handles(order("b", 1))
	})},
	{Name: "an observer that panics for what is closed unseen", Why: "a copy of what was completed is closed, and the next is delivered", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer})
		closed := replayed(newBad(bad))
		require.NoError(t, q.Put(t.Context(), "orders", closed))
		b.db.Do(t, `INSERT INTO millrace_claims (processed_at, payload_hash, token, consumer, result, message_id)
			SELECT received_at, payload_hash, 0, consumer, 1, message_id FROM millrace_messages`)
		next := newMessage()
		require.NoError(t, q.Put(t.Context(), "orders", next))
		store := rig.NewStore(t, b.db.Open(t).DB, inbox.Config{Observers: []inbox.Observer{loud(inbox.KindReplayed)}})
		_, taken := b.had(rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer}))
		assert.Equal(t, []string{next.UUID}, taken)
		assert.Equal(t, 1, b.rows(), "the other is closed")
		assert.EqualValues(t, 1, store.Panics())
	})},
	{Name: "a handler that ends its goroutine", Why: "it is an attempt, as a panic is, and leaves no lease and no hand", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, inboxed := range map[string]bool{"without Inbox": false, "with Inbox": true} {
			for mode := range modes {
				b.exits(name, mode, inboxed, func(*pubsub.Durable, func()) {}, func(*message.Message) error { runtime.Goexit(); return nil })
			}
		}
	})},
	{Name: "a function that ends a goroutine of the queue's", Why: "its message comes again, the others are handled, and the queue ends", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, set := range map[string]func(d *pubsub.Durable, leave func()){
			"Key": func(d *pubsub.Durable, leave func()) {
				d.Key = inbox.ByFunc("id", func(msg *message.Message) (string, error) { leave(); return msg.UUID, nil })
			},
			"NotBefore": func(d *pubsub.Durable, leave func()) {
				d.NotBefore = func(*message.Message) time.Time { leave(); return time.Time{} }
			},
			"Redelivered": func(d *pubsub.Durable, leave func()) {
				d.Redelivered = func(*message.Message) bool { leave(); return false }
			},
			"Classify": func(d *pubsub.Durable, leave func()) {
				d.Classify = func(err error) error { leave(); return err }
			},
			"OnPark": func(d *pubsub.Durable, leave func()) {
				d.OnPark = func(*message.Message, string) error { leave(); return nil }
			},
		} {
			for mode := range modes {
				b.exits(name, mode, false, set, func(*message.Message) error { return errBoom })
			}
		}
	})},
}

// exits has two bad messages and a good one delivered, while set has a function of the service end its goroutine
// once. What is bad is parked, what is good is handled, and nothing is left when the service closes.
func (b *bed) exits(
	name string, mode pubsub.Mode, inboxed bool, set func(d *pubsub.Durable, leave func()), run message.NoPublishHandlerFunc,
) {
	b.Helper()
	name += ", " + modes[mode]
	pool := b.db.Open(b)
	pool.SetMaxOpenConns(3)
	durable := quick(b.newStore(pool.DB))
	durable.Consumer, durable.Mode, durable.Concurrency, durable.MaxAttempts = name, mode, 1, 3
	durable.Lease = time.Second // what a goroutine had that ended is taken back then
	var left atomic.Bool
	set(&durable, func() {
		if left.CompareAndSwap(false, true) {
			runtime.Goexit()
		}
	})
	var middlewares []message.HandlerMiddleware
	if inboxed {
		middlewares = append(middlewares, millrace.Inbox{Store: durable.Store, Consumer: name}.Middleware)
	}
	var handled atomic.Bool
	s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
		if isBad(msg) {
			return nil, run(msg)
		}
		handled.Store(true)
		return nil, nil
	}, middlewares...)
	for _, msg := range []*message.Message{newBad(bad), newBad(bad + " too"), newMessage()} {
		rig.Eventually(b, name+": it is acked", func() bool { return s.deliver(msg) })
	}
	rig.Eventually(b, name+": the bad ones are parked", func() bool {
		return handled.Load() && b.open(admin.Parked) == 2 && b.rows() == 2
	})
	require.NoError(b, s.router.Close(), name)
	require.NoError(b, durable.Store.Close(b.Context()), name)
	rig.Eventually(b, name+": no connection is in use", func() bool { return pool.Stats().InUse == 0 })
	b.db.Do(b, `DELETE FROM millrace_messages`)
}

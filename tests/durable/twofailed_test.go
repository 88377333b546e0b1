package durable_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/internal/dialect"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// failedStraight stores msg as one that went past the table and failed.
func (b *bed) failedStraight(queue *inbox.Queue, msg *message.Message) {
	b.Helper()
	_, fail := queue.Straight("orders", msg)
	stored, err := fail(b.Context())
	require.NoError(b, err)
	require.True(b, stored)
}

// payloads returns those of the open messages in a state.
func (b *bed) payloads(status admin.Status) (all []string) {
	b.Helper()
	for _, m := range b.find(admin.Filter{Status: status}) {
		all = append(all, string(m.Payload))
	}
	return all
}

var errHopeless = inbox.Terminal(errors.New("no attempt would succeed"))

// mustBeTerminal expects that msg waits for an operator after so many attempts.
func (b *bed) mustBeTerminal(msg *message.Message, attempts int) {
	b.Helper()
	found := b.only(b.store, 0)
	assert.Equal(b, admin.FailedTerminal, found.Status)
	assert.Equal(b, attempts, found.Attempts)
	assert.Equal(b, msg.UUID, found.UUID)
	assert.Equal(b, errHopeless.Error(), found.LastError)
	assert.Contains(b, found.Reason, "no other attempt")
	assert.Zero(b, found.DueAt)
}

// outOfReach is a store of leases that does not answer at first, and then gives them all.
type outOfReach struct{ left atomic.Int32 }

func (o *outOfReach) Acquire(context.Context, lease.Key, int64, time.Duration) (lease.State, error) {
	if o.left.Add(-1) >= 0 {
		return lease.State{}, inbox.ErrUnavailable
	}
	return lease.State{Status: lease.Taken}, nil
}

func (o *outOfReach) Confirm(context.Context, lease.Key, int64, time.Duration) error { return nil }

func (o *outOfReach) Release(context.Context, lease.Key, int64) error { return nil }

// twoFailedBodies: messages that fail in spite of what is stored for their key.
var twoFailedBodies = []testdb.Body{
	{Name: "the first message of a consumer is parked before its queue took anything", Why: "a queue serves it as soon as it is stored, and an operator may have it tried again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, MaxAttempts: 1})
		b.failedStraight(queue, newMessage())
		require.NoError(t, admin.New(b.store).Retry(t.Context(), b.only(b.store, admin.Parked).ID, ada, nil))
	})},
	{Name: "a copy fails for good while a process has leased the message", Why: "it is parked, nobody has it, and an operator may decide", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		msg := newMessage()
		b.failedStraight(queue, msg)
		var leased []*inbox.Leased
		rig.Eventually(b, "it is due", func() bool { leased = rig.Take(t, queue, 1); return len(leased) == 1 })
		last := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, MaxAttempts: 1})
		b.failedStraight(last, msg)
		require.Equal(t, 1, b.open(admin.Parked))
		ours, err := queue.HandOut(t.Context(), leased...)
		require.NoError(t, err)
		assert.Empty(t, ours)
		found := b.only(b.store, 0)
		assert.Zero(t, found.LeasedUntil)
		require.NoError(t, admin.New(b.store).Discard(t.Context(), found.ID, ada))
	})},
	{Name: "a copy fails for good while the next attempt begins", Why: "that one decides, and nobody is told of parking", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("one at a time writes")
			return
		}
		queue := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond})
		msg := newMessage()
		b.failedStraight(queue, msg)
		var leased []*inbox.Leased
		rig.Eventually(b, "it is due", func() bool { leased = rig.Take(t, queue, 1); return len(leased) == 1 })

		pool, events, letters := faults.Open(t, b.db), &rig.Events{}, 0
		counts := dialect.For(b.db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix}).TouchMessage
		begins := sync.OnceFunc(func() {
			ours, err := queue.HandOut(t.Context(), leased...)
			assert.NoError(t, err)
			assert.Len(t, ours, 1)
		})
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if call == counts {
				begins()
			}
			return nil
		}})
		b.failedStraight(rig.Queue(t, rig.NewStore(t, pool.DB, inbox.Config{Observers: []inbox.Observer{events}}), inbox.QueueConfig{
			Consumer: consumer, MaxAttempts: 1, OnPark: func(*message.Message, string) error { letters++; return nil },
		}), msg)
		assert.Equal(t, []int{0, 0}, []int{letters, events.Count("parked")})
		require.NoError(t, queue.Finish(t.Context(), leased...))
		assert.Zero(t, b.rows())
	})},
	{Name: "another message with the key of one that failed, fails", Why: "it is acked, so it is parked, not dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
		s := b.start(durable, silent(func(*message.Message) error { return errBoom }))
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		for range 2 {
			assert.True(t, s.deliver(message.NewMessage(msg.UUID, []byte("another"))))
		}
		assert.Equal(t, []string{"payload"}, b.payloads(admin.FailedRetryable))
		assert.Equal(t, []string{"another"}, b.payloads(admin.Parked))
	})},
	{Name: "another message with the key of one that was completed meanwhile, fails", Why: "it is acked, so it is parked, not dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := &rig.Events{}
		store := rig.NewStore(t, b.db.DB, inbox.Config{Observers: []inbox.Observer{events}})
		queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, MaxAttempts: 1})
		msg := newMessage()
		h, err := store.Handler(inbox.ConsumerConfig{Name: consumer},
			func(*message.Message) ([]*message.Message, error) { return nil, nil })
		require.NoError(t, err)
		_, err = h(msg)
		require.NoError(t, err)

		b.failedStraight(queue, msg.Copy())
		assert.Zero(t, b.rows(), "a copy of what was completed")
		assert.Zero(t, events.Count("parked"))
		b.failedStraight(queue, another(msg))
		assert.Equal(t, []string{"another"}, b.payloads(admin.Parked))
	})},
	{Name: "a terminal failure that is recorded", Why: "what RecordFailures has in the table is not stored anew by the queue", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		told := countOnPark(&durable)
		s := b.inboxed(durable, func(*message.Message) error { return errHopeless }, inbox.Options{RecordFailures: true})
		msg := newMessage()
		require.True(t, s.deliver(msg))
		b.mustBeTerminal(msg, 1)
		assert.EqualValues(t, 1, told.Load())
		require.True(t, s.deliver(msg), "a copy")
		b.mustBeTerminal(msg, 1)
	})},
	{Name: "a copy fails terminally", Why: "nor is what waits in the table for its next attempt", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
		told := countOnPark(&durable)
		fails := make(chan error, 2)
		fails <- inbox.RetryAfter(errBoom, time.Hour)
		fails <- errHopeless
		s := b.inboxed(durable, func(*message.Message) error { return <-fails })
		msg := newMessage()
		require.True(t, s.deliver(msg))
		require.Equal(t, 1, b.open(admin.FailedRetryable))
		require.True(t, s.deliver(msg), "a copy")
		b.mustBeTerminal(msg, 2)
		assert.EqualValues(t, 1, told.Load())
	})},
	{Name: "what Deduplicate knows of a delivery", Why: "the queue is told why a handler failed, and that it was not reached", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.MaxAttempts = 3
		s := b.start(durable, silent(func(msg *message.Message) error {
			runs.run(msg)
			return inbox.Terminal(errBoom)
		}), millrace.Deduplicate{Claims: b.store.Leases()}.Middleware)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it waits for an operator", func() bool { return b.open(admin.FailedTerminal) == 1 })
		assert.Equal(t, 1, runs.of(msg))
		assert.Contains(t, b.find(admin.Filter{})[0].LastError, errBoom.Error())
	}},
	{Name: "the store of the leases is out of reach", Why: "a delivery that does not reach the handler is no attempt", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = pubsub.StoreFirst, 2
		down := &outOfReach{}
		down.left.Store(5)
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
			runs.run(msg)
			return nil, nil
		}, millrace.Deduplicate{Claims: inbox.NewLeases(down, inbox.LeasesConfig{})}.Middleware)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return runs.of(msg) == 1 && b.rows() == 0 })
	}},
	{Name: "a message with a long event type", Why: "a header from outside stops no message", Run: inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		durable := quick(b.store)
		durable.Mode = mode
		msg := newMessage()
		msg.Metadata.Set("name", strings.Repeat("ü", 50_000))
		msg.Metadata.Set("ce_dataschema", strings.Repeat("ü", 50_000))
		var runs counter
		b.journaling(durable, func(m *message.Message) error {
			if runs.run(m) == 1 {
				return errBoom
			}
			assert.Equal(t, msg.Metadata, m.Metadata)
			return effect(m)
		}).handles(msg)
	})},
	{Name: "a handler whose own call was cancelled", Why: "nobody cancelled the delivery, so it is an attempt", Run: inBothModes(func(_ *testing.T, b *bed, mode pubsub.Mode) {
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = mode, 3
		b.inboxed(durable, func(msg *message.Message) error {
			ctx, cancel := context.WithCancel(msg.Context())
			cancel()
			return fmt.Errorf("call the bank: %w", ctx.Err())
		}).parks(newMessage())
	})},
}

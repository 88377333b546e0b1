package durable_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
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
		require.NoError(t, admin.New(b.store).Retry(t.Context(), rig.Parked(t, b.store)[0].ID, ada, nil))
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
		found := rig.Find(b, b.store, admin.Filter{})
		require.Len(t, found, 1)
		assert.Zero(t, found[0].LeasedUntil)
		require.NoError(t, admin.New(b.store).Discard(t.Context(), found[0].ID, ada))
	})},
	{Name: "another message with the key of one that failed, fails", Why: "it is acked, so it is parked, not dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
		s := b.start(durable, func(*message.Message) ([]*message.Message, error) { return nil, errBoom })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		for range 2 {
			assert.True(t, s.deliver(message.NewMessage(msg.UUID, []byte("another"))))
		}
		assert.Equal(t, []string{"payload"}, b.payloads(admin.FailedRetryable))
		assert.Equal(t, []string{"another"}, b.payloads(admin.Parked))
	})},
	{Name: "another message with the key of one that was completed meanwhile, fails", Why: "it is acked, so it is parked, not dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		msg, other := newMessage(), newMessage()
		other.UUID, other.Payload = msg.UUID, []byte("another")
		h, err := b.store.Handler(inbox.ConsumerConfig{Name: consumer},
			func(*message.Message) ([]*message.Message, error) { return nil, nil })
		require.NoError(t, err)
		_, err = h(msg)
		require.NoError(t, err)

		b.failedStraight(queue, msg.Copy())
		assert.Zero(t, b.rows(), "a copy of what was completed")
		b.failedStraight(queue, other)
		assert.Equal(t, []string{"another"}, b.payloads(admin.Parked))
	})},
	{Name: "what Deduplicate knows of a delivery", Why: "the queue is told why a handler failed, and that it was not reached", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.MaxAttempts = 3
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
			runs.run(msg)
			return nil, inbox.Terminal(errBoom)
		}, millrace.Deduplicate{Claims: b.store.Leases()}.Middleware)
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
	{Name: "a message with a long event type", Why: "a header from outside stops no message", Run: func(t *testing.T, db *testdb.DB) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			t.Run([]string{"on failure", "first"}[mode], func(t *testing.T) {
				b, runs := newBed(t, testdb.On(t, db.Dialect)), &counter{}
				durable := quick(b.store)
				durable.Mode = mode
				msg := newMessage()
				msg.Metadata.Set("name", strings.Repeat("ü", 50_000))
				msg.Metadata.Set("ce_dataschema", strings.Repeat("ü", 50_000))
				s := b.journaling(durable, func(m *message.Message) error {
					if runs.run(m) == 1 {
						return errBoom
					}
					assert.Equal(t, msg.Metadata, m.Metadata)
					return effect(m)
				})
				assert.True(t, s.deliver(msg))
				rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
			})
		}
	}},
	{Name: "a handler whose own call was cancelled", Why: "nobody cancelled the delivery, so it is an attempt", Run: func(t *testing.T, db *testdb.DB) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			t.Run([]string{"on failure", "first"}[mode], func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := quick(b.store)
				durable.Mode, durable.MaxAttempts = mode, 3
				s := b.inboxed(durable, func(msg *message.Message) error {
					ctx, cancel := context.WithCancel(msg.Context())
					cancel()
					return fmt.Errorf("call the bank: %w", ctx.Err())
				})
				assert.True(t, s.deliver(newMessage()))
				rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
			})
		}
	}},
}

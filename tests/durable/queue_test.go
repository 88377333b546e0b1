package durable_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	testdb.Conformance(t, slices.Concat(queueBodies, storeFirstBodies, leaseBodies, parkingBodies, epochBodies, formerBodies, replayBodies,
		takeUpBodies, stateBodies, importBodies, stepBodies, twoFailedBodies))
}

var errBoom = errors.New("boom")

// queueBodies: what becomes of a message that fails, and what stands around it.
var queueBodies = []testdb.Body{
	{Name: "a message that succeeds", Why: "straight through: nothing is stored", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.inboxed(quick(b.store), effect)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
		assert.Zero(t, b.rows())
	})},
	{Name: "a message that fails", Why: "stored and acked, then tried again from the table", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		s := b.inboxed(quick(b.store), func(msg *message.Message) error {
			if err := effect(msg); err != nil || runs.run(msg) < 4 {
				return errBoom
			}
			assert.Equal(t, "blue", msg.Metadata.Get("colour"))
			assert.Equal(t, "payload", string(msg.Payload))
			return nil
		})
		msg, other := newMessage(), newMessage()
		assert.True(t, s.deliver(msg))
		assert.True(t, s.deliver(other))
		rig.Eventually(b, "both are handled", func() bool { return b.effects(msg) == 1 && b.effects(other) == 1 && b.rows() == 0 })
		assert.Equal(t, 4, runs.of(msg))
		assert.True(t, s.deliver(msg), "a late copy")
		assert.Equal(t, 4, runs.of(msg))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`))
	}},
	{Name: "a message that fails too often", Why: "parked, with a reason and the last error", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.MaxAttempts = 3
		s := b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return errBoom })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		assert.Equal(t, 3, runs.of(msg))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		assert.Equal(t, 3, parked[0].Attempts)
		assert.Equal(t, "failed 3 times", parked[0].Reason)
		assert.Contains(t, parked[0].LastError, "boom")
		assert.True(t, s.deliver(msg), "a copy is acked")
		assert.Equal(t, 3, runs.of(msg))
	}},
	{Name: "an error that is terminal", Why: "no other attempt is made", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.Classify = func(err error) error {
			if errors.Is(err, errBoom) {
				return inbox.Terminal(err)
			}
			return err
		}
		s := b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return errBoom })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, b.open(admin.FailedTerminal))
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, runs.of(msg))

		by := admin.Operator{Name: "ada", Reason: "looked at it"}
		failed, err := admin.New(b.store).Find(t.Context(), admin.Filter{Status: admin.FailedTerminal}, 0, 10)
		require.NoError(t, err)
		require.Len(t, failed, 1)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), failed[0].ID, by, s.published))
		rig.Eventually(b, "it was tried again", func() bool { return runs.of(msg) == 2 && b.open(admin.FailedTerminal) == 1 })
		require.NoError(t, admin.New(b.store).Discard(t.Context(), failed[0].ID, by))
		assert.Zero(t, b.rows())
		require.ErrorIs(t, admin.New(b.store).Discard(t.Context(), failed[0].ID, by), inbox.ErrNotFound)
	}},
	{Name: "an error that says when", Why: "the handler chooses the pause", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		s := b.inboxed(quick(b.store), func(msg *message.Message) error {
			if runs.run(msg) == 1 {
				return inbox.RetryAfter(errBoom, 300*time.Millisecond)
			}
			return effect(msg)
		})
		msg, began := newMessage(), time.Now()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 })
		assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	}},
	{Name: "a pause that ends before the next look", Why: "tried again when it is due, however long Poll and Lease", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		durable := quick(b.store)
		durable.Poll, durable.Lease = time.Hour, time.Hour
		s := b.inboxed(durable, func(msg *message.Message) error {
			if runs.run(msg) < 4 {
				return errBoom
			}
			return effect(msg)
		})
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 })
	}},
	{Name: "a publish that fails", Why: "the outcome is delivered again until it is out, and the handler does not run", Run: func(t *testing.T, db *testdb.DB) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			b, runs := newBed(t, db), &counter{}
			durable := quick(b.process())
			durable.Mode = mode
			s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
				runs.run(msg)
				return []*message.Message{message.NewMessage("invoice-"+msg.UUID, nil)}, effect(msg)
			}, millrace.Inbox{Store: durable.Store}.Middleware)
			s.published.FailWith(errBoom)
			msg := newMessage()
			assert.True(t, s.deliver(msg))
			rig.Eventually(b, "the outcome waits", func() bool { return b.open(admin.Settling) == 1 })
			s.published.FailWith(nil)
			rig.Eventually(b, "the outcome is out", func() bool {
				return b.rows() == 0 && b.count(`SELECT COUNT(*) FROM millrace_outcomes`) == 0
			})
			assert.Contains(t, uuids(s.published.Messages()), "invoice-"+msg.UUID)
			assert.Equal(t, 1, runs.of(msg))
			assert.Equal(t, 1, b.effects(msg))
			require.NoError(t, s.router.Close())
			db.Do(t, `DROP TABLE effects`)
		}
	}},
	{Name: "a router's subscriber decorator", Why: "one Durable serves all handlers, also for what is stored", Run: func(t *testing.T, db *testdb.DB) {
		for _, named := range []string{"", "accounts"} {
			t.Run("consumer "+named, func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := quick(b.store)
				durable.Consumer, durable.ConsumerOf = "", func(topic string) string { return cmp.Or(named, topic) }
				router := rig.NewRouter(t)
				router.AddPlugin(b.store.Plugin())
				router.AddSubscriberDecorators(durable.Decorate)
				router.AddMiddleware(millrace.Inbox{Store: b.store, Consumer: named}.Middleware)
				var runs counter
				s := &service{bed: b, source: rig.NewFeed(), router: router}
				router.AddConsumerHandler("orders", "orders", s.source, func(msg *message.Message) error {
					if runs.run(msg) == 1 {
						return errBoom
					}
					return effect(msg)
				})
				go func() { _ = router.Run(context.WithoutCancel(t.Context())) }()
				t.Cleanup(func() { _ = router.Close() })
				msg := newMessage()
				for range 2 {
					assert.True(t, s.deliver(msg))
					rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
				}
				assert.True(t, s.deliver(newMessage()))
				assert.Equal(t, 2, runs.of(msg))
			})
		}
	}},
	{Name: "marked as redelivered", Why: "stored before it runs, so that one that ends the process is counted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Redelivered = func(*message.Message) bool { return true }
		s := b.inboxed(durable, func(*message.Message) error { return inbox.RetryAfter(errBoom, time.Hour) })
		assert.True(t, s.deliver(newMessage()))
		assert.Equal(t, 1, b.rows())
	})},
	{Name: "settings that make no sense", Why: "a clear error, all at once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		_, err := pubsub.Durable{Mode: 7, Prefetch: -1, OrderKey: func(*message.Message) (string, error) { return "", nil }}.Decorate(rig.NewFeed())
		for _, part := range []string{"Store is required", "Consumer is required", "Mode 7", "Prefetch -1", "OrderKey needs"} {
			require.ErrorContains(t, err, part)
		}
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		other := millrace.Inbox{Store: b.store, Consumer: "other"}.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage(watermill.NewUUID(), nil)))
		taken := rig.Take(t, queue, 1)
		msg, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		_, err = other(msg)
		require.ErrorContains(t, err, "the same Store, Consumer and Epoch")
	})},
}

package durable_test

import (
	"cmp"
	"context"
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

// TestAckOfAStoredMessage: an ack does not always say that the inbox handled the message.
func TestAckOfAStoredMessage(t *testing.T) {
	testdb.Conformance(t, takenOverBodies)
}

const saidTakenOver = "its failure was taken over"

// due makes all that is stored due now.
func (b *bed) due() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET due_at = 1`)
}

// hands takes the only message that is due and hands it to h. What h returns is up to the caller, and so is the answer.
func (b *bed) hands(queue *inbox.Queue, h message.HandlerFunc) (l *inbox.Leased, failure error) {
	b.Helper()
	l = b.takes(queue, 1)[0]
	ours, err := queue.HandOut(b.Context(), l)
	require.NoError(b, err)
	require.Len(b, ours, 1)
	msg, err := l.Message(b.Context())
	require.NoError(b, err)
	return l, do(h, msg)
}

// fails has h fail at the message that is due, and makes it due again.
func (b *bed) fails(queue *inbox.Queue, h message.HandlerFunc, says ...any) {
	b.Helper()
	l, err := b.hands(queue, h)
	require.ErrorIs(b, err, errBoom, says...)
	require.NoError(b, l.Fail(b.Context()))
	b.due()
}

// acks is hands, and acks whatever becomes of the message.
func (b *bed) acks(queue *inbox.Queue, h message.HandlerFunc) (failure error) {
	b.Helper()
	l, failure := b.hands(queue, h)
	require.NoError(b, queue.Finish(b.Context(), l))
	return failure
}

// failsAt is a handler's work that fails in these runs.
func failsAt(runs ...int) message.HandlerFunc {
	var c counter
	return silent(func(msg *message.Message) error {
		run := c.run(msg)
		for _, n := range runs {
			if n == run {
				return errBoom
			}
		}
		return effect(msg)
	})
}

// claims counts the claims that are open, and those that are completed.
func (b *bed) claims() []int {
	b.Helper()
	return []int{
		b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 0`),
		b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result <> 0`),
	}
}

// within wraps the work in an Inbox.
func (b *bed) within(h message.HandlerFunc, options ...inbox.Options) message.HandlerFunc {
	in := millrace.Inbox{Store: b.store, Consumer: consumer}
	for _, o := range options {
		in.Options = o
	}
	in.TwinWait = cmp.Or(in.TwinWait, time.Minute)
	return in.Middleware(h)
}

var takenOverBodies = []testdb.Body{
	{Name: "a failure that somebody takes over", Why: "nothing is kept of the message, so it is handled when it is sent again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msgs := b.told(), newMessages(2)
		for _, msg := range msgs {
			queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1, 2))
			b.fails(queue, h)
			require.Equal(t, []int{1, 0}, b.claims())
			require.ErrorIs(t, b.acks(queue, h), errBoom)
			assert.Equal(t, []int{0, 0}, b.claims())
			assert.Zero(t, b.rows())
			assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_history`))
		}
		assert.Equal(t, 1, events.Said(saidTakenOver), "once per consumer")

		queue, h := b.storeIn(inbox.QueueConfig{}, msgs[0]), b.within(failsAt())
		require.NoError(t, b.acks(queue, h), "it comes back, and is stored")
		require.NoError(t, do(h, msgs[1].Copy()), "it comes back past the table")
		require.NoError(t, do(h, msgs[1].Copy()))
		assert.Equal(t, []int{1, 1}, []int{b.effects(msgs[0]), b.effects(msgs[1])})
		assert.Equal(t, []int{0, 2}, b.claims())
		assert.Zero(t, b.rows())
	})},
	{Name: "MaxInFlight while a copy of a message in work is acked", Why: "noting that takes a transaction too", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool, msg, noted := faults.Open(t, b.db), newMessage(), false
		b.store = rig.NewStore(t, pool.DB, inbox.Config{MaxInFlight: 1})
		queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1))
		b.fails(queue, h)
		pool.Set(faults.Plan{Before: faults.At("reason_code = 2, due_at", func() error {
			noted = true
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // the transaction is open until the end of this
			defer cancel()
			another := newMessage()
			another.SetContext(ctx)
			require.ErrorIs(t, do(h, another), context.DeadlineExceeded, "it waits for its turn")
			return nil
		})})
		require.NoError(t, b.acks(queue, func(m *message.Message) ([]*message.Message, error) {
			require.NoError(t, do(h, msg.Copy()))
			return h(m)
		}))
		assert.True(t, noted)
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a failure under Deduplicate that somebody takes over", Why: "as under Inbox", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.told()
		msg, works := newMessage(), atomic.Bool{}
		var runs counter
		h := millrace.Deduplicate{Claims: b.store.Leases(), Consumer: consumer}.Middleware(silent(func(msg *message.Message) error {
			runs.run(msg)
			if works.Load() {
				return nil
			}
			return errBoom
		}))
		require.ErrorIs(t, b.acks(b.storeIn(inbox.QueueConfig{}, msg), h), errBoom)
		assert.Equal(t, []int{0, 0}, b.claims())
		assert.Zero(t, b.rows())
		works.Store(true)
		require.NoError(t, b.acks(b.storeIn(inbox.QueueConfig{}, msg), h))
		assert.Equal(t, 2, runs.of(msg))
		assert.Equal(t, []int{0, 1}, b.claims())
	})},
	{Name: "a failure, and a success in the same delivery", Why: "the last try counts", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		for _, h := range []message.HandlerFunc{
			b.within(failsAt(1)),
			millrace.Deduplicate{Claims: b.store.Leases(), Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				if msg.Metadata.Get("again") == "" {
					return nil, errBoom
				}
				return nil, nil
			}),
		} {
			_, before := b.claims()[0], b.claims()[1]
			require.NoError(t, b.acks(b.storeIn(inbox.QueueConfig{}, newMessage()), func(msg *message.Message) ([]*message.Message, error) {
				require.ErrorIs(t, do(h, msg), errBoom)
				msg.Metadata.Set("again", "yes")
				return h(msg)
			}))
			assert.Equal(t, []int{0, before + 1}, b.claims())
			assert.Zero(t, b.rows())
		}
		assert.Zero(t, events.Said(saidTakenOver))
	})},
	{Name: "a failure and a nack, and another try in the same delivery", Why: "the failure is the cause", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		nacks := func(msg *message.Message) ([]*message.Message, error) {
			msg.Nack()
			return nil, errBoom
		}
		for _, h := range []message.HandlerFunc{
			b.within(nacks),
			millrace.Deduplicate{Claims: b.store.Leases(), Consumer: consumer}.Middleware(nacks),
		} {
			l, err := b.hands(b.storeIn(inbox.QueueConfig{}, newMessage()), func(msg *message.Message) ([]*message.Message, error) {
				require.ErrorIs(t, do(h, msg), errBoom)
				return h(msg)
			})
			require.ErrorContains(t, err, "nacked before")
			require.NoError(t, l.Fail(t.Context()))
			b.due()
			assert.Equal(t, "boom", b.only(b.store, admin.FailedRetryable).LastError)
			require.NoError(t, b.acks(rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer}), b.within(failsAt())))
		}
	})},
	{Name: "a failure, and a success that returns a message in the same delivery", Why: "it is published once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events, msg := b.told(), newMessage()
		var runs counter
		s := b.start(storeFirst(b.store), func(msg *message.Message) ([]*message.Message, error) {
			if runs.run(msg) == 1 {
				return nil, errBoom
			}
			return invoicing(msg)
		}, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if produced, err := h(msg); err == nil {
					return produced, nil
				}
				return h(msg)
			}
		}, inboxOf(quick(b.store)))
		s.handles(msg)
		assert.Equal(t, []string{"invoice"}, uuids(s.published.Messages()))
		assert.Zero(t, b.outcomes())
		assert.Zero(t, events.Said(saidTakenOver))
	})},
	{Name: "a failure that somebody takes over after the lease was lost", Why: "what another process has stays", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.told()
		queue, h := b.storeIn(inbox.QueueConfig{}, newMessage()), b.within(failsAt(1, 2))
		b.fails(queue, h)
		l, err := b.hands(queue, h)
		require.ErrorIs(t, err, errBoom)
		b.db.Do(t, `UPDATE millrace_messages SET lease_token = lease_token + 1`)
		require.ErrorIs(t, queue.Finish(t.Context(), l), inbox.ErrLost)
		assert.Equal(t, []int{1, 0}, b.claims())
		assert.Equal(t, 1, b.rows())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_history`))
	})},
	{Name: "a failure that somebody takes over, and a copy that was handled meanwhile", Why: "the message is handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		for n, again := range []bool{true, false} {
			msg, h := newMessage(), b.within(failsAt(1))
			require.NoError(t, b.acks(b.storeIn(inbox.QueueConfig{}, msg), func(m *message.Message) ([]*message.Message, error) {
				require.ErrorIs(t, do(h, m), errBoom)
				require.NoError(t, do(h, msg.Copy()))
				if again {
					return h(m)
				}
				return nil, nil
			}))
			assert.Equal(t, []int{0, n + 1}, b.claims())
			assert.Zero(t, b.rows())
			assert.Equal(t, 1, b.effects(msg))
			assert.Equal(t, n, events.Said(saidTakenOver), "unless the inbox found it handled")
		}
	})},
	{Name: "a failure that somebody takes over, and a copy that is acked before Durable knows of that", Why: "it may be what was sent again: it is handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		refuse := inbox.Options{OnReplay: inbox.ReplayRefuse}
		for name, copied := range map[string]func(queue *inbox.Queue, msg *message.Message){
			"stored": func(queue *inbox.Queue, msg *message.Message) {
				require.NoError(t, queue.Put(t.Context(), "orders", msg))
			},
			"past the table": func(_ *inbox.Queue, msg *message.Message) {
				require.NoError(t, do(b.within(failsAt()), msg))
			},
			"past the table, failed": func(queue *inbox.Queue, msg *message.Message) {
				b.failedStraight(queue, msg)
			},
			"as a refused replay": func(_ *inbox.Queue, msg *message.Message) {
				require.NoError(t, do(b.within(failsAt(), refuse), replayed(msg)))
			},
			"with a gap": func(_ *inbox.Queue, msg *message.Message) {
				require.NoError(t, do(b.within(millrace.VersionGate{}.Middleware(failsAt())), msg))
			},
		} {
			events, msg := b.told(), stamped(name, 2)
			queue, h := b.storeIn(inbox.QueueConfig{}, msg), b.within(failsAt(1, 2))
			if name != "as a refused replay" && name != "with a gap" { // which find no claim
				b.fails(queue, h)
			}
			l, err := b.hands(queue, h)
			require.ErrorIs(t, err, errBoom, name)
			copied(queue, msg.Copy())
			require.NoError(t, queue.Finish(t.Context(), l), name)
			assert.Equal(t, 1, b.open(admin.FailedRetryable), name)
			b.due()
			require.NoError(t, b.acks(queue, b.within(failsAt())))
			assert.Equal(t, []int{1, 0, 0}, []int{b.effects(msg), b.rows(), events.Said(saidTakenOver)}, name)
		}
	})},
	{Name: "the next of an order key, behind a failure that somebody takes over", Why: "it is delivered", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.told()
		first, second := newMessage(), newMessage()
		queue := b.storeIn(inbox.QueueConfig{OrderKey: func(*message.Message) (string, error) { return "one", nil }}, first, second)
		require.ErrorIs(t, b.acks(queue, b.within(failsAt(1))), errBoom)
		require.NoError(t, b.acks(queue, b.within(failsAt())))
		assert.Equal(t, []int{0, 1, 0}, []int{b.effects(first), b.effects(second), b.rows()})
	})},
	{Name: "what the gate holds for a message whose failure somebody takes over", Why: "it waits until the message is sent again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.told()
		first, second := stamped("a", 1), stamped("a", 2)
		h := b.within(millrace.VersionGate{}.Middleware(failsAt(1)))
		queue := b.storeIn(inbox.QueueConfig{}, second)
		require.NoError(t, b.acks(queue, b.within(millrace.VersionGate{}.Middleware(silent(effect)))))
		require.Equal(t, 1, b.open(admin.Held))
		require.NoError(t, queue.Put(t.Context(), "orders", first))
		require.ErrorIs(t, b.acks(queue, h), errBoom)
		assert.Equal(t, []int{1, 1}, []int{b.open(admin.Held), b.rows()})
		require.NoError(t, queue.Put(t.Context(), "orders", first))
		require.NoError(t, b.acks(queue, h))
		require.NoError(t, b.acks(queue, b.within(millrace.VersionGate{}.Middleware(silent(effect)))))
		assert.Equal(t, []int{1, 1, 0}, []int{b.effects(first), b.effects(second), b.rows()})
	})},
	{Name: "a handled message whose outcome is not published when somebody takes a failure over", Why: "the queue publishes it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var away atomic.Bool
		s := b.start(storeFirst(b.store), invoicing, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if !away.Load() {
					return h(msg)
				}
				ctx, cancel := context.WithCancel(msg.Context())
				cancel()
				msg.SetContext(ctx)
				_, err := h(msg)
				assert.Error(t, err)
				away.Store(false)
				return nil, nil
			}
		}, inboxOf(quick(b.store)))
		s.published.FailWith(errBoom)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.open(admin.Settling) == 1 })
		away.Store(true)
		rig.Eventually(b, "it was acked", func() bool { return !away.Load() })
		s.published.FailWith(nil)
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 && b.outcomes() == 0 })
		assert.Contains(t, uuids(s.published.Messages()), "invoice")
		assert.Equal(t, 1, b.effects(msg))
	})},
}

package durable_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
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
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConformance(t *testing.T) {
	testdb.Conformance(t, slices.Concat(queueBodies, storeFirstBodies, leaseBodies, silentBodies, parkingBodies, epochBodies, formerBodies, replayBodies,
		takeUpBodies, stateBodies, importBodies, stepBodies, twoFailedBodies, observerBodies, nackBodies, carriedBodies))
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
		parked := s.parks(msg)
		assert.Equal(t, 3, runs.of(msg))
		assert.Equal(t, 3, parked.Attempts)
		assert.Equal(t, "failed 3 times", parked.Reason)
		assert.Contains(t, parked.LastError, "boom")
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

		failed := b.only(b.store, admin.FailedTerminal)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), failed.ID, ada, s.published))
		rig.Eventually(b, "it was tried again", func() bool { return runs.of(msg) == 2 && b.open(admin.FailedTerminal) == 1 })
		require.NoError(t, admin.New(b.store).Discard(t.Context(), failed.ID, ada))
		assert.Zero(t, b.rows())
		require.ErrorIs(t, admin.New(b.store).Discard(t.Context(), failed.ID, ada), inbox.ErrNotFound)
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
	{Name: "a pause that ends before the next look", Why: "tried again when it is due, however long Poll and Lease", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Poll, durable.Lease = time.Hour, time.Hour
		b.booming(durable, 3).handles(newMessage())
	})},
	{Name: "a publish that fails", Why: "the outcome is delivered again until it is out, and the handler does not run", Run: func(t *testing.T, db *testdb.DB) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			b, runs := newBed(t, db), &counter{}
			durable := quick(b.process())
			durable.Mode = mode
			s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
				runs.run(msg)
				return []*message.Message{message.NewMessage("invoice-"+msg.UUID, nil)}, effect(msg)
			}, inboxOf(durable))
			s.published.FailWith(errBoom)
			msg := newMessage()
			assert.True(t, s.deliver(msg))
			rig.Eventually(b, "the outcome waits", func() bool { return b.open(admin.Settling) == 1 })
			s.published.FailWith(nil)
			rig.Eventually(b, "the outcome is out", func() bool { return b.rows() == 0 && b.outcomes() == 0 })
			assert.Contains(t, uuids(s.published.Messages()), "invoice-"+msg.UUID)
			assert.Equal(t, 1, runs.of(msg))
			assert.Equal(t, 1, b.effects(msg))
			require.NoError(t, s.router.Close())
			db.Do(t, `DROP TABLE effects`)
		}
	}},
	{Name: "a publish that fails, and its outcome and claim are deleted", Why: "the message is handled again, and its row closed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		start := func() *service {
			durable := quick(b.process())
			return b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("invoice-"+msg.UUID, nil)}, effect(msg)
			}, inboxOf(durable))
		}
		s, msg := start(), newMessage()
		s.published.FailWith(errBoom)
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "the outcome waits", func() bool { return b.open(admin.Settling) == 1 })
		require.NoError(t, s.router.Close())
		b.db.Do(t, `DELETE FROM millrace_outcomes`)
		b.db.Do(t, `DELETE FROM millrace_claims`)
		s = start()
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
		assert.Contains(t, uuids(s.published.Messages()), "invoice-"+msg.UUID)
		assert.Equal(t, 2, b.effects(msg))
	})},
	{Name: "a router's subscriber decorator", Why: "one Durable serves all handlers, also for what is stored", Run: func(t *testing.T, db *testdb.DB) {
		for _, named := range []string{"", "accounts"} {
			t.Run("consumer "+named, func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := quick(b.store)
				durable.Consumer, durable.ConsumerOf = "", func(topic string) string { return cmp.Or(named, topic) }
				var runs counter
				s := b.decorated(durable, func(msg *message.Message) error {
					if runs.run(msg) == 1 {
						return errBoom
					}
					return effect(msg)
				}, millrace.Inbox{Store: b.store, Consumer: named}.Middleware)
				msg := newMessage()
				for range 2 {
					s.handles(msg)
				}
				assert.True(t, s.deliver(newMessage()))
				assert.Equal(t, 2, runs.of(msg))
			})
		}
	}},
	{Name: "a router's subscriber decorator around Deduplicate", Why: "a stored message brings neither its handler nor its topic, and is handled", Run: func(t *testing.T, db *testdb.DB) {
		for _, named := range []string{"", "accounts"} {
			t.Run("consumer "+named, func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := quick(b.store)
				durable.Consumer, durable.ConsumerOf = "", func(topic string) string { return cmp.Or(named, topic) }
				durable.Key = inbox.ByUUID().WithinTopic()
				var runs counter
				msg, other := newMessage(), newMessage()
				s := b.decorated(durable, func(m *message.Message) error {
					if runs.run(m) == 1 && m.UUID == msg.UUID {
						return errBoom
					}
					return nil
				}, millrace.Deduplicate{Claims: b.store.Leases(), Consumer: named, Key: durable.Key}.Middleware)
				assert.True(t, s.deliver(msg))
				rig.Eventually(b, "it is handled", func() bool { return runs.of(msg) == 2 && b.rows() == 0 })
				assert.True(t, s.deliver(other))
				assert.Equal(t, 1, runs.of(other), "straight through")
				assert.True(t, s.deliver(msg), "a copy, known by its key")
				assert.Equal(t, 2, runs.of(msg))
				assert.Zero(t, b.rows())
			})
		}
	}},
	{Name: "the queue of another handler", Why: "a failure would be taken for a copy of what that one has handled", Run: func(t *testing.T, db *testdb.DB) {
		for name, guard := range map[string]func(*bed) message.HandlerMiddleware{
			"Inbox": func(b *bed) message.HandlerMiddleware { return millrace.Inbox{Store: b.store}.Middleware },
			"Deduplicate": func(b *bed) message.HandlerMiddleware {
				return millrace.Deduplicate{Claims: b.store.Leases()}.Middleware
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				durable := quick(b.store)
				durable.Consumer, durable.ConsumerOf = "", func(string) string { return "welcome" } // one of two handlers
				router, feeds, runs := rig.NewRouter(b), map[string]*rig.Feed{}, map[string]*counter{}
				router.AddPlugin(b.store.Plugin())
				router.AddSubscriberDecorators(durable.Decorate)
				router.AddMiddleware(guard(b))
				for _, handler := range []string{"welcome", "report"} {
					feeds[handler], runs[handler] = rig.NewFeed(), &counter{}
					router.AddConsumerHandler(handler, "booked", feeds[handler], func(msg *message.Message) error {
						runs[handler].run(msg)
						return errBoom
					})
				}
				rig.Run(b, router)
				msg := newMessage()
				acked := func(handler string) bool {
					s := &service{bed: b, source: feeds[handler]}
					return s.deliver(msg)
				}
				began := time.Now()
				for range 3 {
					assert.False(t, acked("report"), "nobody else would have it")
				}
				assert.Greater(t, time.Since(began), 300*time.Millisecond, "it comes again after pauses that grow")
				assert.True(t, acked("welcome"))
				rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
				assert.Equal(t, 10, runs["welcome"].of(msg), "as often as attempts are counted")
				assert.Zero(t, runs["report"].of(msg))
			})
		}
	}},
	{Name: "MaxInFlight behind a router's subscriber decorator", Why: "it bounds what is stored and what is not together", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Consumer, durable.Redelivered = "accounts", func(msg *message.Message) bool { return msg.Metadata.Get(redelivered) != "" }
		var now atomic.Int32
		var together atomic.Bool
		s := b.decorated(durable, func(msg *message.Message) error {
			defer now.Add(-1)
			if now.Add(1) > 1 {
				together.Store(true)
			}
			return effect(msg)
		}, millrace.Inbox{Store: b.store, Consumer: "accounts", Options: inbox.Options{MaxInFlight: 1}}.Middleware)
		const n = 20
		for _, mark := range []string{"true", ""} {
			for _, msg := range newMessages(n) {
				msg.Metadata.Set(redelivered, mark)
				s.source.Send(t, msg)
			}
		}
		rig.Eventually(t, "all are handled", func() bool { return b.count(`SELECT COUNT(*) FROM effects`) == 2*n })
		assert.False(t, together.Load())
	})},
	{Name: "a source that gives a message up", Why: "its deadline is an attempt, and of the rest the log tells", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		for _, deadline := range []bool{true, false} {
			durable, feed, router := quick(b.store), rig.NewFeed(), rig.NewRouter(b)
			durable.MaxAttempts = 1
			ctx, giveUp := context.WithCancel(t.Context())
			if deadline {
				ctx = overdue{ctx}
			}
			impatient, err := message.MessageTransformSubscriberDecorator(func(msg *message.Message) { msg.SetContext(ctx) })(feed)
			require.NoError(t, err)
			sub, err := durable.Decorate(impatient)
			require.NoError(t, err)
			router.AddPlugin(b.store.Plugin())
			router.AddMiddleware(inboxOf(durable))
			router.AddConsumerHandler(consumer, "orders", sub, func(*message.Message) error { giveUp(); return errBoom })
			rig.Run(b, router)
			msg := newMessage()
			feed.Send(t, msg)
			assert.Equal(t, deadline, rig.Answer(t, msg))
			require.NoError(t, router.Close())
		}
		assert.Equal(t, 1, b.open(admin.Parked))
		assert.Equal(t, 1, b.rows())
		assert.Equal(t, 1, strings.Count(strings.Join(events.Logs(), "\n"), "the source gave a message up"))
	})},
	{Name: "returned messages, and no topic for them", Why: "the error says so, also of a stored message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.MaxAttempts = 2
		s := &service{bed: b, source: rig.NewFeed(), router: rig.NewRouter(b)}
		sub, err := durable.Decorate(s.source)
		require.NoError(t, err)
		s.router.AddPlugin(durable.Store.Plugin())
		s.router.AddMiddleware(inboxOf(durable))
		s.router.AddHandler(consumer, "orders", sub, "", &rig.Publisher{}, invoicing)
		rig.Run(b, s.router)
		assert.Contains(t, s.parks(newMessage()).LastError, "no topic to publish them to: add it with AddHandler")
	})},
	{Name: "marked as redelivered", Why: "stored before it runs, so that one that ends the process is counted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Redelivered = func(msg *message.Message) bool { return msg.Metadata.Get(redelivered) != "" }
		var stored atomic.Int64
		s := b.inboxed(durable, func(msg *message.Message) error {
			stored.Store(int64(b.rows()))
			return effect(msg)
		})
		for mark, want := range map[string]int64{"": 0, "true": 1} {
			msg := newMessage()
			msg.Metadata.Set(redelivered, mark)
			assert.True(t, s.deliver(msg))
			rig.Eventually(t, "it is handled", func() bool { return b.effects(msg) == 1 })
			assert.Equal(t, want, stored.Load(), "while it runs, marked %q", mark)
			rig.Eventually(t, "its row is gone", func() bool { return b.rows() == 0 })
		}
	})},
	{Name: "settings that make no sense", Why: "a clear error, all at once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		_, err := pubsub.Durable{Mode: 7, Prefetch: -1, OrderKey: func(*message.Message) (string, error) { return "", nil }}.Decorate(rig.NewFeed())
		for _, part := range []string{"Store is required", "Consumer is required", "Mode 7", "Prefetch -1", "OrderKey needs"} {
			require.ErrorContains(t, err, part)
		}
	})},
}

// overdue is a context whose end is that of a deadline.
type overdue struct{ context.Context } //nolint:containedctx // it is one

func (o overdue) Err() error {
	if o.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// observerBodies: what a queue tells.
var observerBodies = []testdb.Body{
	{Name: "attempts, and their end", Why: "each attempt is told, and why there is no other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		var failure atomic.Pointer[error]
		durable := quick(b.store)
		durable.MaxAttempts = 3
		s := b.inboxed(durable, func(*message.Message) error { return *failure.Load() })
		for _, c := range []struct {
			err     error
			reason  string
			retried int
		}{
			{errBoom, inbox.ReasonAttempts, 2}, {inbox.Terminal(errBoom), inbox.ReasonTerminal, 0},
			{inbox.Terminal(inbox.ErrUnknownType), inbox.ReasonUnknownType, 0},
		} {
			failure.Store(&c.err)
			parked, retried := events.Count("parked"), events.Count("retried")
			msg := newMessage()
			msg.Metadata.Set("name", "paid")
			require.True(t, s.deliver(msg))
			rig.Eventually(b, "it is parked", func() bool { return events.Count("parked") > parked })
			e := events.Last("parked")
			assert.Equal(t, c.reason, e.Reason)
			assert.Equal(t, []string{msg.UUID, "orders", "paid"}, []string{e.UUID, e.Topic, e.Type})
			assert.ErrorContains(t, e.Err, c.err.Error())
			assert.Equal(t, c.retried+1, e.Attempt)
			require.Equal(t, c.retried, events.Count("retried")-retried)
		}
		all := events.All("retried")
		assert.Equal(t, []int{1, 2}, []int{all[0].Attempt, all[1].Attempt})
		assert.Equal(t, inbox.ReasonError, all[0].Reason)
	})},
	{Name: "leases that were taken over", Why: "a process ended, which nobody else tells", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		events := b.told()
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer, Lease: time.Minute})
		require.NoError(t, queue.Put(t.Context(), "orders", newMessage(), newMessage(), newMessage()))
		take := func(want int) []*inbox.Leased {
			taken := rig.Take(t, queue, 10)
			require.Len(t, taken, want)
			return taken
		}
		take(3)
		assert.Zero(t, events.Count("reclaimed"))
		b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`)
		taken := take(3)
		assert.Equal(t, 3, events.Last("reclaimed").Count)
		assert.Equal(t, consumer, events.Last("reclaimed").Consumer)
		require.NoError(t, queue.PutBack(t.Context(), taken...))
		take(3)
		assert.Equal(t, 1, events.Count("reclaimed"), "given back is not lapsed")
	})},
}

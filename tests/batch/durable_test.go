package batch_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var durable = []testdb.Body{
	{Name: "stored messages", Why: "they come in batches, which close their rows", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 8
		q := b.newQueue(n)
		msgs := newMessages(n)
		q.stores(msgs)
		b.once(msgs)
		assert.Equal(t, []int{n}, q.seen())

		more := newMessages(n) // one of which fails
		fails := failsAlone(more[2])
		q.handler.Store(&fails)
		q.stores(more)
		b.once(slices.Concat(msgs, more))
		assert.ElementsMatch(t, []int{n, n, n - 1, 1, 1}, q.seen(), "it failed alone, and was retried alone")
		assert.Equal(t, 1, b.events.Count("failed"))
		if b.db.Dialect == "sqlite" { // whose transaction keeps others from writing
			return
		}
		last := newMessages(n) // one of which is discarded meanwhile
		var discarded atomic.Bool
		discards := handler(func(ctx context.Context, msgs []*message.Message) error {
			if discarded.CompareAndSwap(false, true) {
				b.db.Do(t, `DELETE FROM millrace_messages WHERE uuid = ?`, []byte(last[2].UUID))
			}
			return apply(ctx, msgs)
		})
		q.handler.Store(&discards)
		q.stores(last)
		b.once(slices.Concat(msgs, more, without(last, 2)))
		b.idle(b.db.DB)
	})},
	{Name: "the attempts of stored messages", Why: "each has its own, and a batch has none", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 3
		q, none := b.newQueue(n), func(ctx context.Context) bool { return inbox.Attempt(ctx) == 0 && inbox.ReceivedAt(ctx).IsZero() }
		asks := handler(func(ctx context.Context, msgs []*message.Message) error {
			assert.True(t, none(ctx), "of the batch")
			for _, msg := range msgs {
				assert.Equal(t, 1, inbox.Attempt(msg.Context()))
				assert.False(t, inbox.ReceivedAt(msg.Context()).IsZero())
			}
			return apply(ctx, msgs)
		})
		q.handler.Store(&asks)
		q.stores(newMessages(n))
		assert.Equal(t, []int{n}, q.seen())
	})},
	{Name: "behind a router's subscriber decorator", Why: "what is stored and what is not meet in one batch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		seen, feed, router, msgs := &sizes{}, rig.NewFeed(), rig.NewRouter(b), newMessages(2)
		batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store, Consumer: "billing"}, Max: len(msgs), Linger: rig.Patience}
		batch.Inbox.TwinWait, batch.Inbox.Timeout = rig.Patience, rig.Patience
		router.AddPlugin(batch.Plugin())
		router.AddSubscriberDecorators(pubsub.Durable{
			Store: b.store, Consumer: "billing", Redelivered: func(msg *message.Message) bool { return msg.UUID == msgs[1].UUID },
		}.Decorate)
		router.AddConsumerHandler("documents", "orders", feed, batch.ConsumerHandler(seen.of(apply)))
		rig.Run(b, router)
		for _, m := range msgs {
			feed.Send(t, m)
			rig.Eventually(t, "it gathers", func() bool { return b.events.Count("received") > 0 })
		}
		rig.Eventually(t, "both are handled", func() bool { return b.effects() == len(msgs) })
		assert.Equal(t, []int{len(msgs)}, seen.seen())
	})},
}

// queue is a service whose messages come from its own table in batches.
type queue struct {
	*bed
	*sizes
	feed    *rig.Feed
	handler atomic.Pointer[handler]
}

func (b *bed) newQueue(n int, change ...func(*millrace.Batch)) *queue {
	b.Helper()
	first := handler(apply)
	q := &queue{bed: b, sizes: &sizes{}, feed: rig.NewFeed()}
	q.handler.Store(&first)
	source, err := pubsub.Durable{
		Store: b.store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: 2 * n, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond,
	}.Decorate(q.feed)
	require.NoError(b, err)
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store}, Max: n, Linger: rig.Patience}
	batch.Inbox.TwinWait, batch.Inbox.Timeout = rig.Patience, rig.Patience
	for _, c := range change {
		c(&batch)
	}
	router := rig.NewRouter(b)
	router.AddPlugin(batch.Plugin())
	router.AddConsumerHandler("billing", "orders", source, batch.ConsumerHandler(q.of(
		func(ctx context.Context, msgs []*message.Message) error { return (*q.handler.Load())(ctx, msgs) })))
	rig.Run(b, router)
	return q
}

// stores delivers msgs, and waits until none is stored any more.
func (q *queue) stores(msgs []*message.Message) {
	q.Helper()
	for _, m := range msgs {
		q.feed.Send(q, m)
	}
	for _, m := range msgs {
		assert.True(q, rig.Answer(q, m))
	}
	rig.Eventually(q, "no message is stored", func() bool { return q.db.Count(q, `SELECT COUNT(*) FROM millrace_messages`) == 0 })
}

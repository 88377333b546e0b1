package batch_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestConformance runs every behaviour on every database.
func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, slices.Concat(gathering, twins, failures, transactions, around, durable, old))
}

// sizes records the sizes of the batches that a handler gets.
type sizes struct {
	mu  sync.Mutex
	all []int
}

func (s *sizes) of(h handler) handler {
	return func(ctx context.Context, msgs []*message.Message) error {
		s.mu.Lock()
		s.all = append(s.all, len(msgs))
		s.mu.Unlock()
		return h(ctx, msgs)
	}
}

func (s *sizes) seen() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int{}, s.all...)
}

// poisoned fails as long as bad is among the messages.
func poisoned(bad *message.Message, fail func(msg *message.Message) error) handler {
	uuid := bad.UUID
	return func(ctx context.Context, msgs []*message.Message) error {
		if err := apply(ctx, msgs); err != nil {
			return err
		}
		for _, m := range msgs {
			if m.UUID == uuid {
				return fail(m)
			}
		}
		return nil
	}
}

func without(msgs []*message.Message, i int) []*message.Message {
	return append(append([]*message.Message{}, msgs[:i]...), msgs[i+1:]...)
}

var gathering = []testdb.Body{
	{Name: "a batch", Why: "one transaction handles all, each is answered and counted by itself", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 100
		var seen sizes
		msgs := newMessages(n)
		b.must(b.batch(n, seen.of(func(ctx context.Context, msgs []*message.Message) error {
			tx, err := inbox.Tx(ctx)
			require.NoError(t, err)
			for _, m := range msgs {
				own, err := inbox.Tx(m.Context())
				require.NoError(t, err)
				assert.Same(t, tx, own)
				id, err := inbox.ID(m.Context(), "x")
				require.NoError(t, err)
				assert.NotEmpty(t, id)
				require.NoError(t, inbox.SetResult(m.Context(), m.UUID))
				_, limited := m.Context().Deadline()
				assert.True(t, limited)
			}
			_, err = inbox.ID(ctx, "x")
			require.ErrorIs(t, err, inbox.ErrNoMessage, "it belongs to no single message")
			_, limited := ctx.Deadline()
			assert.True(t, limited)
			return apply(msgs[0].Context(), msgs)
		})), msgs)
		assert.Equal(t, []int{n}, seen.seen())
		b.once(msgs)
		b.claimedInOrder()
		assert.Equal(t, map[string]int{"received": n, "completed": n}, b.events.Counts())
		result, err := b.store.Result(t.Context(), "billing", msgs[7].UUID)
		require.NoError(t, err)
		assert.Contains(t, string(result), msgs[7].UUID)
		b.must(b.batch(n, apply), copies(msgs))
		b.once(msgs)
		assert.Equal(t, n, b.events.Count("duplicate"))
		b.idle(b.db.DB)
	})},
	{Name: "results of a batch that are sealed", Why: "each for its own message, also the one that was set for all", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		codec, err := payload.NewAESGCM(payload.KeyRing{Current: "1", Keys: map[string][]byte{"1": make([]byte, 16)}})
		require.NoError(t, err)
		sealing := rig.NewStore(b, b.db.DB, inbox.Config{Payloads: codec})
		msgs := newMessages(2)
		b.must(b.batch(2, func(ctx context.Context, msgs []*message.Message) error {
			return errors.Join(inbox.SetResult(ctx, "for all"), inbox.SetResult(msgs[0].Context(), msgs[0].UUID), apply(ctx, msgs))
		}, on(sealing)), msgs)
		var kept []string
		require.NoError(t, b.db.SelectContext(t.Context(), &kept, `SELECT body FROM millrace_results`))
		require.Len(t, kept, 2)
		said := make(map[string]int)
		for i, msg := range msgs {
			assert.NotContains(t, kept[i], "for all")
			result, err := sealing.Result(t.Context(), "billing", msg.UUID)
			require.NoError(t, err)
			said[string(result)]++
		}
		assert.Equal(t, 1, said[`"for all"`], "%v", said)
	})},
	{Name: "a message whose context ends while it waits", Why: "it leaves the batch and is nacked, and the others go on", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		h := b.batch(2, apply)
		ctx, cancel := context.WithCancel(t.Context())
		msgs[0].SetContext(ctx)
		left := rig.Handle(h, msgs[0]) // leads
		cancel()
		require.ErrorIs(t, rig.Within(t, left, "it waits"), context.Canceled)
		b.must(h, msgs[1:])
		b.once(msgs[1:])
		b.must(b.batch(1, apply), copies(msgs[:1]))
		b.once(msgs)
	})},
	{Name: "contexts that end while the batch runs", Why: "one does not harm the others, and all together end the handler's", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		var cancels []context.CancelFunc
		for _, m := range msgs {
			ctx, cancel := context.WithCancel(t.Context())
			m.SetContext(ctx)
			cancels = append(cancels, cancel)
		}
		b.must(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			cancels[1]()
			return errors.Join(ctx.Err(), apply(ctx, msgs))
		}), msgs)
		b.once(msgs)

		more := newMessages(4)
		ctx, cancel := context.WithCancel(t.Context())
		for _, m := range more {
			m.SetContext(ctx)
		}
		h := b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			err := apply(ctx, msgs)
			cancel()
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		})
		for _, err := range b.errs(start(h, more)) {
			require.ErrorIs(t, err, context.Canceled)
		}
		b.once(msgs)
	})},
	{Name: "a router that closes", Why: "it does not undo a finished batch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(4)
		ctx, cancel := context.WithCancel(t.Context())
		for _, m := range msgs {
			m.SetContext(ctx)
		}
		b.must(b.batch(4, func(ctx context.Context, msgs []*message.Message) error {
			defer cancel()
			return apply(ctx, msgs)
		}), msgs)
		b.once(msgs)
		require.NoError(t, b.store.Close(t.Context()))
	})},
	{Name: "a flood through a router", Why: "what is in flight gathers by itself, and each message is handled once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 500
		var seen sizes
		batch := millrace.Batch{Inbox: millrace.Inbox{Store: b.store}}
		batch.Inbox.TwinWait = rig.Patience
		router := rig.NewRouter(t)
		feed := rig.NewFeed()
		router.AddPlugin(batch.Plugin())
		router.AddConsumerHandler("billing", "orders", feed, batch.ConsumerHandler(seen.of(apply)))
		rig.Run(t, router)
		msgs := newMessages(n)
		for _, m := range append(msgs, copies(msgs)...) {
			go feed.Give(m)
		}
		for _, m := range msgs {
			assert.True(t, rig.Answer(t, m))
		}
		rig.Eventually(t, "all copies are answered", func() bool { return b.events.Count("duplicate") == n })
		b.once(msgs)
		assert.Less(t, len(seen.seen()), n/2)
		for _, line := range b.events.Logs() {
			assert.Contains(t, line, "a setting of the database should be changed")
		}
	})},
}

// claimedInOrder checks that the keys were claimed in sorted order, in whatever order the messages came: of two batches, neither
// then waits for a key while the other waits for one that it has. PostgreSQL shows in which order rows were inserted.
func (b *bed) claimedInOrder() {
	b.Helper()
	if b.db.Dialect != "postgres" {
		return
	}
	var ids [][]byte
	require.NoError(b, b.db.SelectContext(b.Context(), &ids, `SELECT message_id FROM millrace_claims ORDER BY ctid`))
	assert.True(b, slices.IsSortedFunc(ids, bytes.Compare))
}

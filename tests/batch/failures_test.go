package batch_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var failures = []testdb.Body{
	{Name: "a message that fails", Why: "halves are tried until it is alone, and is treated as by Inbox", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, bad = 100, 42
		msgs := newMessages(n)
		var seen sizes
		h := b.batch(n, seen.of(poisoned(msgs[bad], func(*message.Message) error { return errBoom })),
			func(b *millrace.Batch) { b.Inbox.RecordFailures = true })
		for i, err := range b.errs(start(h, msgs)) {
			if i == bad {
				require.ErrorIs(t, err, errBoom)
				var named *inbox.DeliveryError
				require.ErrorAs(t, err, &named)
				assert.Equal(t, msgs[bad].UUID, named.MessageID)
			} else {
				require.NoError(t, err, i)
			}
		}
		assert.LessOrEqual(t, len(seen.seen()), 2*8)
		assert.Equal(t, n-1, b.effects())
		assert.Equal(t, n-1, b.events.Count("completed"))
		assert.Equal(t, 1, b.events.Count("failed"))
		assert.Equal(t, n, b.events.Count("received"))
		assert.Equal(t, 1, b.db.Count(t, `SELECT attempts FROM millrace_messages`))
		b.must(b.batch(1, apply, func(b *millrace.Batch) { b.Inbox.RecordFailures = true }), copies(msgs[bad:bad+1]))
		b.once(msgs)
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages`))
	})},
	{Name: "a message that panics", Why: "a panic is an error, and the message that panics alone does so in its own goroutine", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n, bad = 9, 3
		msgs := newMessages(n)
		h := b.batch(n, poisoned(msgs[bad], func(*message.Message) error { panic("no") }))
		var panics atomic.Int32
		answers := start(func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				if recover() != nil {
					assert.Equal(t, msgs[bad].UUID, msg.UUID)
					panics.Add(1)
				}
			}()
			return h(msg)
		}, msgs)
		for _, err := range b.errs(answers) {
			require.NoError(t, err)
		}
		assert.EqualValues(t, 1, panics.Load())
		b.once(without(msgs, bad))
		b.idle(b.db.DB)
	})},
	{Name: "a handler that ends its goroutine", Why: "nobody waits for ever, and each message is nacked by itself", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 5
		msgs := newMessages(n)
		h := b.batch(n, func(ctx context.Context, msgs []*message.Message) error {
			_ = apply(ctx, msgs)
			runtime.Goexit()
			return nil
		})
		for _, m := range msgs {
			go func() { _, _ = h(m) }()
		}
		for _, m := range msgs {
			assert.False(t, rig.Answer(t, m))
		}
		b.idle(b.db.DB)
		b.must(b.batch(n, apply), copies(msgs))
		b.once(msgs)
	})},
	{Name: "named failures", Why: "the others are done in the next transaction, while those still run", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 100
		msgs := newMessages(n)
		var seen sizes
		var others sync.WaitGroup
		others.Add(n - 2)
		bad := map[string]bool{msgs[3].UUID: true, msgs[77].UUID: true}
		h := b.batch(n, seen.of(func(ctx context.Context, batch []*message.Message) error {
			if len(batch) == 1 && b.db.Dialect != "sqlite" { // where a transaction that waits lets no other write
				others.Wait()
			}
			var failed []error
			for _, m := range batch {
				if bad[m.UUID] {
					failed = append(failed, millrace.Failed(m, errBoom))
				}
			}
			return errors.Join(append(failed, apply(ctx, batch))...)
		}))
		counted := func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if !bad[msg.UUID] {
				others.Done()
			}
			return produced, err
		}
		for i, err := range b.errs(start(counted, msgs)) {
			if i == 3 || i == 77 {
				require.ErrorIs(t, err, errBoom)
			} else {
				require.NoError(t, err)
			}
		}
		assert.ElementsMatch(t, []int{n, n - 2, 1, 1}, seen.seen())
		b.once(without(without(msgs, 77), 3))
	})},
	{Name: "messages that the handler nacks", Why: "they are redelivered, so they fail, and the others do not", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 9
		msgs := newMessages(n)
		nacked := map[string]bool{msgs[3].UUID: true, msgs[7].UUID: true}
		var seen sizes
		h := b.batch(n, seen.of(func(ctx context.Context, batch []*message.Message) error {
			for _, m := range batch {
				if nacked[m.UUID] {
					m.Nack()
				}
			}
			return apply(ctx, batch)
		}))
		for i, err := range b.errs(start(h, copies(msgs))) {
			if nacked[msgs[i].UUID] {
				require.ErrorContains(t, err, "nacked while its handler ran")
			} else {
				require.NoError(t, err)
			}
		}
		assert.Equal(t, []int{n, n - 2}, seen.seen())
		assert.Equal(t, 2, b.events.Count("failed"))
		b.once(without(without(msgs, 7), 3))
		b.must(b.batch(2, apply), copies([]*message.Message{msgs[3], msgs[7]}))
		b.once(msgs)
		b.idle(b.db.DB)
	})},
	{Name: "a handler that changes its messages", Why: "the next try gets them as they came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 6
		msgs := newMessages(n)
		var tries atomic.Int32
		h := b.batch(n, func(ctx context.Context, batch []*message.Message) error {
			for _, m := range batch {
				assert.Equal(t, "x", string(m.Payload))
				assert.Empty(t, m.Metadata)
				m.Payload[0] = 'y'
				m.Metadata.Set("changed", "yes")
			}
			err := apply(ctx, batch)
			for _, m := range batch {
				m.UUID = "changed"
			}
			if tries.Add(1) == 1 {
				return errBoom
			}
			return err
		})
		copied := copies(msgs)
		b.must(h, copied)
		b.once(msgs)
		for i, m := range copied {
			assert.Equal(t, msgs[i].UUID, m.UUID)
			assert.Equal(t, "x", string(m.Payload))
			assert.Empty(t, m.Metadata)
			assert.Nil(t, m.Context().Value(struct{}{}))
		}
	})},
	{Name: "a panic while a batch asks whether the database is back", Why: "the next delivery asks", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		h := b.batch(2, apply, on(b.newStore(pool.DB)))
		pool.Set(faults.Plan{Before: faults.Lose("millrace_claims")})
		for _, err := range b.errs(start(h, newMessages(2))) {
			require.ErrorIs(t, err, inbox.ErrUnavailable)
		}
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "millrace_claims") {
				panic("no")
			}
			return nil
		}})
		var panicked atomic.Int32
		b.errs(start(func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				if recover() != nil {
					panicked.Add(1)
				}
			}()
			return h(msg)
		}, newMessages(2)))
		require.Positive(t, panicked.Load())
		pool.Set(faults.Plan{})
		msgs := newMessages(2)
		b.must(h, msgs)
		b.once(msgs)
	})},
}

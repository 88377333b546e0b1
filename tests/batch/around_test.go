package batch_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var (
	retry   = middleware.Retry{MaxRetries: 1, InitialInterval: 1}.Middleware
	timeout = middleware.Timeout(time.Minute)
)

// failsAlone names bad as failed until it has failed alone.
func failsAlone(bad *message.Message) handler {
	var failed atomic.Bool
	uuid := bad.UUID
	return func(ctx context.Context, msgs []*message.Message) error {
		i := slices.IndexFunc(msgs, func(m *message.Message) bool { return m.UUID == uuid })
		if i >= 0 && !failed.Load() {
			failed.Store(len(msgs) == 1)
			return millrace.Failed(msgs[i], errBoom)
		}
		return apply(ctx, msgs)
	}
}

// TestRetryAroundABatch brings a message that failed alone into a later batch.
func TestRetryAroundABatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	var seen sizes
	msgs := newMessages(7)
	alone := make(chan struct{})
	fails := failsAlone(msgs[0])
	h := b.batch(4, seen.of(func(ctx context.Context, msgs []*message.Message) error {
		if len(msgs) == 1 {
			defer close(alone)
		}
		return fails(ctx, msgs)
	}))
	first := start(retry(h), msgs[:4])
	<-alone
	for _, err := range b.errs(append(first, start(h, msgs[4:])...)) {
		require.NoError(t, err)
	}
	b.once(msgs)
	assert.ElementsMatch(t, []int{4, 3, 1, 4}, seen.seen())
	assert.Equal(t, 1, b.events.Count("failed"))
}

// TestRetryAndTimeoutAroundABatch: Timeout leaves an ended context behind, which the next try must not get.
func TestRetryAndTimeoutAroundABatch(t *testing.T) {
	t.Parallel()
	again := middleware.Retry{MaxRetries: 1, InitialInterval: 1, ResetContextOnRetry: true}.Middleware
	for order, around := range map[string]struct {
		wrap func(h message.HandlerFunc) message.HandlerFunc
		err  error
	}{
		"Timeout, Retry":             {func(h message.HandlerFunc) message.HandlerFunc { return timeout(retry(h)) }, nil},
		"Retry that resets, Timeout": {func(h message.HandlerFunc) message.HandlerFunc { return again(timeout(h)) }, nil},
		"Retry, Timeout":             {func(h message.HandlerFunc) message.HandlerFunc { return retry(timeout(h)) }, context.Canceled},
	} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, "sqlite"))
			msgs := newMessages(3)
			h := b.batch(3, failsAlone(msgs[0]), func(b *millrace.Batch) { b.Linger = 0 })
			answers := b.errs(start(around.wrap(h), msgs))
			require.ErrorIs(t, answers[0], around.err)
			require.NoError(t, errors.Join(answers[1:]...))
			b.once(msgs[len(msgs)-b.effects():])
		})
	}
}

// TestTimeoutAroundABatch ends the function's context once it has ended those of all messages, and the batch is undone.
func TestTimeoutAroundABatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	h := b.batch(3, func(ctx context.Context, msgs []*message.Message) error {
		err := apply(ctx, msgs)
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	})
	for _, err := range b.errs(start(middleware.Timeout(100*time.Millisecond)(h), newMessages(3))) {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	assert.Zero(t, b.effects())
	b.idle(b.db.DB)
}

// each runs a handler of one message for each of the batch, within the middlewares, and names those that fail.
func each(h message.NoPublishHandlerFunc, within ...message.HandlerMiddleware) handler {
	single := silent(h)
	for _, m := range within {
		single = m(single)
	}
	return func(_ context.Context, msgs []*message.Message) error {
		var failed []error
		for _, m := range msgs {
			_, err := single(m)
			failed = append(failed, millrace.Failed(m, err))
		}
		return errors.Join(failed...)
	}
}

// TestRecoverer keeps a panic from the router outside of a batch, and from the other messages within.
func TestRecoverer(t *testing.T) {
	t.Parallel()
	for _, within := range []bool{false, true} {
		b := newBed(t, testdb.On(t, "sqlite"))
		msgs := newMessages(8)
		bad := msgs[3].UUID
		single := func(msg *message.Message) error {
			if msg.UUID == bad {
				panic("no")
			}
			return apply(msg.Context(), []*message.Message{msg})
		}
		var seen sizes
		h, tries := middleware.Recoverer(b.batch(8, seen.of(each(single)))), 7
		if within {
			h, tries = b.batch(8, seen.of(each(single, middleware.Recoverer))), 3
		}
		for i, err := range b.errs(start(h, msgs)) {
			var panicked middleware.RecoveredPanicError
			assert.Equal(t, i == 3, errors.As(err, &panicked), err)
		}
		b.once(without(msgs, 3))
		assert.Len(t, seen.seen(), tries, seen.seen())
		assert.Equal(t, within, slices.Contains(seen.seen(), 7))
	}
}

// TestTimeoutInsideABatch leaves an ended context in each message, which neither the next try nor the commit sees.
func TestTimeoutInsideABatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	msgs := newMessages(4)
	slow := true
	var seen sizes
	b.must(b.batch(4, seen.of(each(func(msg *message.Message) error {
		if slow {
			slow = false
			<-msg.Context().Done()
			return msg.Context().Err()
		}
		return apply(context.WithoutCancel(msg.Context()), []*message.Message{msg})
	}, middleware.Timeout(50*time.Millisecond)))), msgs)
	b.once(msgs)
	assert.ElementsMatch(t, []int{4, 3, 1}, seen.seen())
}

var around = []testdb.Body{
	{Name: "Retry inside a batch", Why: "it runs in the transaction of the run that failed, whose writes stay", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		failed := false
		b.must(b.batch(3, each(func(msg *message.Message) error {
			err := apply(msg.Context(), []*message.Message{msg})
			if !failed {
				failed = true
				return errBoom
			}
			return err
		}, retry)), msgs)
		assert.Equal(t, 4, b.effects(), "the effect of the run that failed is there too")
	})},
	{Name: "Retry of a failed statement inside a batch", Why: "PostgreSQL refuses all that follows, and nothing is acked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(2)
		answers := start(b.batch(2, each(func(msg *message.Message) error {
			_ = rig.Exec(msg.Context(), `INSERT INTO nowhere (uuid) VALUES (?)`, msg.UUID)
			_ = apply(msg.Context(), []*message.Message{msg})
			return nil
		})), msgs)
		acked := 0
		for _, err := range b.errs(answers) {
			if err == nil {
				acked++
			}
		}
		if b.db.Dialect == "postgres" {
			assert.Zero(t, acked)
		}
		b.once(msgs[:acked])
		b.idle(b.db.DB)
	})},
}

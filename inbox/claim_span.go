package inbox

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
)

// span bounds one transaction, nearly always with a single timer: by Timeout and, while it waits for
// other processes, by its patience. It has two contexts: that of the transaction, which outlives a
// router that closes, and that of the handler, which also ends with the delivery.
type span struct {
	tx            context.Context //nolint:containedctx // a span is its contexts
	endTx         context.CancelFunc
	handler       context.Context //nolint:containedctx // a span is its contexts
	cancelHandler context.CancelFunc

	born      time.Time    // the times below are nanoseconds since then, by the clock that nobody can set
	ends      atomic.Int64 // when Timeout runs out
	limit     atomic.Int64 // when the span ends if nothing moves the limit; over once it has ended
	nextCheck atomic.Int64 // when check runs next
	timer     *time.Timer
	waited    time.Time // when the last wait for other processes began
}

const over = math.MinInt64

// newSpan returns a span for a delivery with the context ctx that ends after timeout. Its timer
// fires after wake at the latest, to see whether the limit was moved meanwhile: that is cheaper
// than resetting the timer each time.
func newSpan(ctx context.Context, timeout, wake time.Duration) *span {
	return newSpanWith(ctx, ctx, timeout, wake)
}

// newSpanWith is newSpan with the values of another context for the transaction.
func newSpanWith(ctx, values context.Context, timeout, wake time.Duration) *span {
	s := &span{born: time.Now()}
	s.ends.Store(int64(timeout))
	s.limit.Store(int64(timeout))
	s.nextCheck.Store(int64(min(timeout, wake)))
	s.tx, s.endTx = context.WithCancel(context.WithoutCancel(values))
	s.handler, s.cancelHandler = context.WithCancel(ctx)
	s.timer = time.AfterFunc(min(timeout, wake), s.check)
	return s
}

// check ends the span if its limit has passed, else it checks again at the limit.
func (s *span) check() {
	if s.tx.Err() != nil {
		return
	}
	for {
		limit := s.limit.Load()
		ahead := limit - int64(time.Since(s.born))
		if ahead <= 0 && s.limit.CompareAndSwap(limit, over) {
			break
		}
		s.nextCheck.Store(limit)
		if ahead > 0 && s.limit.Load() == limit { // else a wait moved it before it could see nextCheck
			time.AfterFunc(time.Duration(ahead), s.check)
			return
		}
	}
	s.cancelHandler() // first, so that a live context never holds a dead transaction
	s.endTx()
}

// wait begins a wait for other processes, which patience bounds and Timeout does not. It lasts until
// [span.resume]. wait reports false if the span has ended.
func (s *span) wait(patience time.Duration) bool {
	s.waited = time.Now()
	until := int64(s.waited.Sub(s.born) + patience)
	if !s.move(until) {
		return false
	}
	if until < s.nextCheck.Load() {
		time.AfterFunc(patience, s.check)
	}
	return true
}

// resume ends a wait and extends Timeout by its length. It reports false if the span has ended.
func (s *span) resume() bool { return s.move(s.ends.Add(int64(time.Since(s.waited)))) }

func (s *span) move(limit int64) bool {
	last := s.limit.Load()
	return last != over && s.limit.CompareAndSwap(last, limit)
}

// deadline returns when Timeout runs out.
func (s *span) deadline() time.Time { return s.born.Add(time.Duration(s.ends.Load())) }

// give returns the context for the handler, with t and the claim in it.
func (s *span) give(t *ambient.Tx, cl *claim) context.Context {
	return handlerContext{Context: ambient.With(s.handler, t), span: s, claim: cl}
}

// outlast has messages that carry the handler's context, which has ended, end with the delivery: they are
// published next.
func (cl *claim) outlast(produced []*message.Message) {
	for _, m := range produced {
		if ctx := m.Context(); ambient.From(ctx) == cl.ambient {
			m.SetContext(withValues(cl.ctx, ambient.With(ctx, ambient.From(cl.ctx))))
		}
	}
}

// late reports whether the span ended by its timer.
func (s *span) late() bool { return s.limit.Load() == over }

func (s *span) end() {
	s.timer.Stop()
	s.endTx()
	s.cancelHandler()
}

// handlerContext tells the handler its deadline.
type handlerContext struct {
	context.Context //nolint:containedctx // it is one
	span            *span
	claim           *claim // nil for the context of a batch
}

// Deadline returns when the transaction is rolled back, or the message's own deadline if that is earlier.
func (c handlerContext) Deadline() (time.Time, bool) {
	end := c.span.deadline()
	if own, ok := c.Context.Deadline(); ok && own.Before(end) {
		return own, true
	}
	return end, true
}

// Err distinguishes a transaction that took too long from a delivery that was cancelled.
func (c handlerContext) Err() error {
	err := c.Context.Err()
	if err != nil && c.span.late() {
		return context.DeadlineExceeded
	}
	return err
}

package inbox

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/internal/ambient"
)

// span bounds one transaction with a single timer: first by how long it may wait for its
// claim, then by Timeout. Its contexts are the transaction's, which outlives a router that
// closes, and the handler's, which ends with the delivery as well.
type span struct {
	tx            context.Context //nolint:containedctx // a span is its contexts
	endTx         context.CancelFunc
	handler       context.Context //nolint:containedctx // a span is its contexts
	cancelHandler context.CancelFunc

	deadline time.Time
	limit    atomic.Int64 // when it ends, in nanoseconds; over once it has
	timer    *time.Timer
}

const over = 0

// newSpan returns a span for a delivery with the context ctx that ends after timeout. The
// timer goes off after wake at the latest, to see whether the limit was moved meanwhile:
// that is cheaper than to set it anew each time.
func newSpan(ctx context.Context, timeout, wake time.Duration) *span {
	s := &span{deadline: time.Now().Add(timeout)}
	s.limit.Store(s.deadline.UnixNano())
	s.tx, s.endTx = context.WithCancel(context.WithoutCancel(ctx))
	s.handler, s.cancelHandler = context.WithCancel(ctx)
	s.timer = time.AfterFunc(min(timeout, wake), s.look)
	return s
}

// look ends the span, unless its limit lies ahead.
func (s *span) look() {
	if s.tx.Err() != nil {
		return
	}
	limit := s.limit.Load()
	if ahead := limit - time.Now().UnixNano(); ahead > 0 || !s.limit.CompareAndSwap(limit, over) {
		time.AfterFunc(max(time.Duration(ahead), 0), s.look)
		return
	}
	s.cancelHandler() // first, so that a live context never holds a dead transaction
	s.endTx()
}

// until moves the limit to t, which must not lie before the next look. It reports false if
// the span has ended.
func (s *span) until(t time.Time) bool {
	limit := s.limit.Load()
	return limit != over && s.limit.CompareAndSwap(limit, t.UnixNano())
}

// give returns the handler's context, with t and the claim in it.
func (s *span) give(t *ambient.Tx, cl *Claim) context.Context {
	return handlerContext{Context: ambient.With(s.handler, t), span: s, claim: cl}
}

// late reports whether the span ended by its timer.
func (s *span) late() bool { return s.limit.Load() == over }

func (s *span) end() {
	s.timer.Stop()
	s.endTx()
	s.cancelHandler()
}

// handlerContext tells the handler when its time is up.
type handlerContext struct {
	context.Context //nolint:containedctx // it is one
	span            *span
	claim           *Claim
}

// Deadline returns when the transaction is rolled back, or the message's own deadline.
func (c handlerContext) Deadline() (time.Time, bool) {
	if own, ok := c.Context.Deadline(); ok && own.Before(c.span.deadline) {
		return own, true
	}
	return c.span.deadline, true
}

// Err tells a transaction that took too long from a delivery that was cancelled.
func (c handlerContext) Err() error {
	err := c.Context.Err()
	if err != nil && c.span.late() {
		return context.DeadlineExceeded
	}
	return err
}

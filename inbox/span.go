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
	timer    *time.Timer
	expired  atomic.Bool
}

// newSpan returns a span for a delivery with the context ctx that ends after timeout.
func newSpan(ctx context.Context, timeout time.Duration) *span {
	s := &span{deadline: time.Now().Add(timeout)}
	s.tx, s.endTx = context.WithCancel(context.WithoutCancel(ctx))
	s.handler, s.cancelHandler = context.WithCancel(ctx)
	s.timer = time.AfterFunc(timeout, s.expire)
	return s
}

func (s *span) expire() {
	s.expired.Store(true)
	s.endTx()
	s.cancelHandler()
}

// until moves the end of the span. It reports false if the span has ended already.
func (s *span) until(t time.Time) bool {
	if !s.timer.Stop() {
		return false
	}
	s.timer.Reset(time.Until(t))
	return true
}

// give returns the handler's context, with t in it.
func (s *span) give(t *ambient.Tx) context.Context {
	return handlerContext{Context: ambient.With(s.handler, t), span: s}
}

// late reports whether the span ended by its timer.
func (s *span) late() bool { return s.expired.Load() }

func (s *span) end() {
	s.timer.Stop()
	s.endTx()
	s.cancelHandler()
}

// handlerContext tells the handler when its time is up.
type handlerContext struct {
	context.Context //nolint:containedctx // it is one
	span            *span
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

package inbox

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/internal/ambient"
)

// span bounds one transaction, nearly always with a single timer: by Timeout, and while it waits for other
// processes by how long it may. Its contexts are the transaction's, which outlives a router that
// closes, and the handler's, which ends with the delivery as well.
type span struct {
	tx            context.Context //nolint:containedctx // a span is its contexts
	endTx         context.CancelFunc
	handler       context.Context //nolint:containedctx // a span is its contexts
	cancelHandler context.CancelFunc

	ends   atomic.Int64 // when Timeout runs out, in nanoseconds
	limit  atomic.Int64 // when it ends as things are, likewise; over once it has
	looks  atomic.Int64 // when that is looked at next, likewise
	timer  *time.Timer
	waited time.Time // since then it waits for others
}

const over = 0

// newSpan returns a span for a delivery with the context ctx that ends after timeout. The
// timer goes off after wake at the latest, to see whether the limit was moved meanwhile:
// that is cheaper than to set it anew each time.
func newSpan(ctx context.Context, timeout, wake time.Duration) *span {
	s, now := &span{}, time.Now()
	s.ends.Store(now.Add(timeout).UnixNano())
	s.limit.Store(s.ends.Load())
	s.looks.Store(now.Add(min(timeout, wake)).UnixNano())
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
	for {
		limit := s.limit.Load()
		ahead := limit - time.Now().UnixNano()
		if ahead <= 0 && s.limit.CompareAndSwap(limit, over) {
			break
		}
		s.looks.Store(limit)
		if ahead > 0 && s.limit.Load() == limit { // else it was moved before anybody could know of the next look
			time.AfterFunc(time.Duration(ahead), s.look)
			return
		}
	}
	s.cancelHandler() // first, so that a live context never holds a dead transaction
	s.endTx()
}

// wait bounds what follows by patience until [span.resume]: it waits for others, for which Timeout is
// not meant. It reports false if the span has ended.
func (s *span) wait(patience time.Duration) bool {
	s.waited = time.Now()
	until := s.waited.Add(patience).UnixNano()
	if !s.move(until) {
		return false
	}
	if until < s.looks.Load() {
		time.AfterFunc(patience, s.look)
	}
	return true
}

// resume ends a wait, which Timeout is longer by. It reports false if the span has ended.
func (s *span) resume() bool { return s.move(s.ends.Add(int64(time.Since(s.waited)))) }

func (s *span) move(limit int64) bool {
	last := s.limit.Load()
	return last != over && s.limit.CompareAndSwap(last, limit)
}

// deadline returns when Timeout runs out.
func (s *span) deadline() time.Time { return time.Unix(0, s.ends.Load()) }

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
	end := c.span.deadline()
	if own, ok := c.Context.Deadline(); ok && own.Before(end) {
		return own, true
	}
	return end, true
}

// Err tells a transaction that took too long from a delivery that was cancelled.
func (c handlerContext) Err() error {
	err := c.Context.Err()
	if err != nil && c.span.late() {
		return context.DeadlineExceeded
	}
	return err
}

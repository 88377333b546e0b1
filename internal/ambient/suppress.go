package ambient

import (
	"context"
	"sync/atomic"
)

// Suppressed counts the messages that a handler published and that were dropped.
type Suppressed struct {
	count atomic.Int64
	over  atomic.Bool
}

type suppressedKey struct{}

// Suppress returns a context with which published messages are counted instead of sent, in whatever
// transaction, until [Suppressed.End].
func Suppress(ctx context.Context) (context.Context, *Suppressed) {
	s := &Suppressed{}
	return context.WithValue(ctx, suppressedKey{}, s), s
}

// Suppresses reports whether ctx suppresses messages, and counts n of them if so.
func Suppresses(ctx context.Context, n int) bool {
	s, _ := ctx.Value(suppressedKey{}).(*Suppressed)
	if s == nil || s.over.Load() {
		return false
	}
	s.Add(n)
	return true
}

// End stops the suppression: from then on messages with the context are sent. A message may have
// carried the context to another handler, and nobody would read the count.
func (s *Suppressed) End() { s.over.Store(true) }

// Add counts n messages.
func (s *Suppressed) Add(n int) { s.count.Add(int64(n)) }

// Count returns how many messages were suppressed.
func (s *Suppressed) Count() int { return int(s.count.Load()) }

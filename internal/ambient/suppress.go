package ambient

import (
	"context"
	"sync/atomic"
)

// Suppressed counts what a handler would have sent, and did not.
type Suppressed struct {
	count atomic.Int64
	over  atomic.Bool
}

type suppressedKey struct{}

// Suppress returns a context with which nothing is sent, only counted, in whatever
// transaction, until the end.
func Suppress(ctx context.Context) (context.Context, *Suppressed) {
	s := &Suppressed{}
	return context.WithValue(ctx, suppressedKey{}, s), s
}

// Suppresses reports whether nothing is sent with ctx, and counts n messages if so.
func Suppresses(ctx context.Context, n int) bool {
	s, _ := ctx.Value(suppressedKey{}).(*Suppressed)
	if s == nil || s.over.Load() {
		return false
	}
	s.Add(n)
	return true
}

// End has sent again what is sent with the context: nobody would ask for the count. A message
// may have carried the context to another handler.
func (s *Suppressed) End() { s.over.Store(true) }

// Add counts n messages.
func (s *Suppressed) Add(n int) { s.count.Add(int64(n)) }

// Count returns how many messages were counted.
func (s *Suppressed) Count() int { return int(s.count.Load()) }

package dashboard

import (
	"context"
	"sync/atomic"
	"time"
)

// recent caches for a moment what is expensive to read.
type recent[T any] struct {
	turn  turn
	last  atomic.Pointer[reading[T]]
	acted atomic.Int64 // counts what an operator changed
}

// reading is what was read, and when.
type reading[T any] struct {
	at    time.Time
	took  time.Duration
	acted int64 // how much an operator had changed before
	found T
}

// old reports whether r is to be read again: after fresh, or ten times as long as it took.
func (r *reading[T]) old(fresh time.Duration) bool {
	return r == nil || time.Since(r.at) >= max(fresh, 10*r.took)
}

// stale reports whether an operator changed something since r was read.
func (r *recent[T]) stale() bool {
	last := r.last.Load()
	return last != nil && last.acted != r.acted.Load()
}

// get returns what read returned lately.
func (r *recent[T]) get(ctx context.Context, fresh time.Duration, read func(context.Context) (T, error)) (found T, err error) {
	now, err := r.read(ctx, fresh, read)
	if err != nil {
		return found, err
	}
	return now.found, nil
}

func (r *recent[T]) read(ctx context.Context, fresh time.Duration, read func(context.Context) (T, error)) (*reading[T], error) {
	if err := r.turn.take(ctx); err != nil {
		return nil, err
	}
	defer r.turn.give()
	if last := r.last.Load(); !last.old(fresh) && !r.stale() {
		return last, nil
	}
	began, acted := time.Now(), r.acted.Load()
	found, err := read(ctx)
	if err != nil {
		return nil, err
	}
	now := &reading[T]{at: began, took: time.Since(began), acted: acted, found: found}
	r.last.Store(now)
	return now, nil
}

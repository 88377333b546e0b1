package dashboard

import (
	"context"
	"sync/atomic"
	"time"
)

// recent caches for a moment what is expensive to read.
type recent[T any] struct {
	turn  turn
	at    time.Time
	took  time.Duration
	found T
	stale atomic.Bool // an operator changed something
}

// get returns what read returned at most fresh ago, or ten times as long ago as it took.
func (r *recent[T]) get(ctx context.Context, fresh time.Duration, read func(context.Context) (T, error)) (found T, err error) {
	if err := r.turn.take(ctx); err != nil {
		return found, err
	}
	defer r.turn.give()
	began := time.Now()
	if began.Sub(r.at) < max(fresh, 10*r.took) && !r.stale.Swap(false) {
		return r.found, nil
	}
	if found, err = read(ctx); err == nil {
		r.at, r.took, r.found = began, time.Since(began), found
	}
	return found, err
}

// Package remaining tells who empties a topic whether it is empty. Silence does not: a subscriber that has lost its
// connection is as silent until it has another one.
package remaining

import (
	"context"
	"sync/atomic"
)

// Count returns how many messages of a subscription nobody has received yet, without those of other subscriptions, or
// why nobody can tell.
type Count func() (int, error)

type key struct{}

// Asked is where a subscriber leaves its Count.
type Asked struct{ count atomic.Pointer[Count] }

// Ask returns a context for Subscribe that asks the subscriber for its Count.
func Ask(ctx context.Context) (context.Context, *Asked) {
	a := &Asked{}
	return context.WithValue(ctx, key{}, a), a
}

// Tell answers, in Subscribe, if ctx asks.
func Tell(ctx context.Context, count Count) {
	if a, is := ctx.Value(key{}).(*Asked); is {
		a.count.Store(&count)
	}
}

// Count is the subscriber's. Of one that has not told it returns 0.
func (a *Asked) Count() (int, error) {
	if count := a.count.Load(); count != nil {
		return (*count)()
	}
	return 0, nil
}

// Package writers admits the writers of one process one at a time, in the order of the calls, to a
// database that takes one writer.
package writers

import (
	"context"
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// Queue admits one writer at a time. Goroutines that wait on a channel are served in order.
type Queue chan struct{}

// Enter waits for the turn to write; the returned function ends the turn. It takes a turn that is free even
// if ctx has ended. A nil Queue admits everyone at once.
func (q Queue) Enter(ctx context.Context) (leave func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	if err := Take(ctx, q); err != nil {
		return nil, err
	}
	return func() { <-q }, nil
}

// Take waits for one of the places of a channel, and fills it. It fills a place that is free even if ctx has
// ended.
func Take(ctx context.Context, places chan<- struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// queues has one queue per pool for as long as the pool lives: an inbox and an outbox on one pool
// must share the queue without knowing each other.
var queues sync.Map // weak.Pointer[sql.DB] to Queue

// Known returns the queue of db, nil if nobody has called [Of] for it.
func Known(db *sql.DB) Queue {
	if q, ok := queues.Load(weak.Make(db)); ok {
		return q.(Queue)
	}
	return nil
}

// Of returns the queue of db.
func Of(db *sql.DB) Queue {
	key := weak.Make(db)
	if q, ok := queues.Load(key); ok {
		return q.(Queue)
	}
	q, loaded := queues.LoadOrStore(key, make(Queue, 1))
	if !loaded {
		runtime.AddCleanup(db, func(key weak.Pointer[sql.DB]) { queues.Delete(key) }, key)
	}
	return q.(Queue)
}

// Package writers lets the writers of one process into a database with a single writer,
// one at a time and in the order of asking.
package writers

import (
	"context"
	"database/sql"
	"runtime"
	"sync"
	"weak"
)

// Queue admits one writer at a time. Goroutines that wait for a channel are served first
// come, first served.
type Queue chan struct{}

// Enter waits for the turn to write. The caller ends it with the returned function. A nil
// Queue lets everyone in at once.
func (q Queue) Enter(ctx context.Context) (leave func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	select {
	case q <- struct{}{}:
		return func() { <-q }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// queues holds one queue per pool, as long as the pool lives: an inbox and an outbox on
// the same pool must share it without knowing each other.
var queues sync.Map // weak.Pointer[sql.DB] to Queue

// Known returns the queue of db, nil if nobody has asked for it with [Of].
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

// Package bell wakes goroutines that wait for work on a pool, within one process.
package bell

import (
	"database/sql"
	"runtime"
	"sync"
	"weak"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Bell wakes its listeners.
type Bell struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

// Listen returns a channel that receives a token after one or more rings.
func (b *Bell) Listen() (rings <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = make(map[chan struct{}]struct{})
	}
	b.listeners[c] = struct{}{}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, c)
	}
}

// Ring wakes the listeners and reports whether there are any. It does not wait.
func (b *Bell) Ring() (heard bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.listeners {
		select {
		case c <- struct{}{}:
		default: // the last token is still there
		}
	}
	return len(b.listeners) > 0
}

// bells has one bell per pool and tables for as long as the pool lives, so that writers and waiters on
// both meet without being introduced.
var bells sync.Map // place to *Bell

type place struct {
	pool   weak.Pointer[sql.DB]
	tables dialect.Names
}

// Of returns the bell of the tables in db.
func Of(db *sql.DB, tables dialect.Names) *Bell {
	key := place{weak.Make(db), tables}
	if b, ok := bells.Load(key); ok {
		return b.(*Bell)
	}
	b, loaded := bells.LoadOrStore(key, &Bell{})
	if !loaded {
		runtime.AddCleanup(db, func(key place) { bells.Delete(key) }, key)
	}
	return b.(*Bell)
}

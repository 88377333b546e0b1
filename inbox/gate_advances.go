package inbox

import (
	"sync"
	"time"
)

// advances wakes the deliveries of this process that wait for a version of an aggregate.
type advances struct {
	mu    sync.Mutex
	lines map[string]*line
}

// line is the deliveries that wait for one aggregate. One of them at a time asks the database for
// all.
type line struct {
	waiting map[*waiter]struct{}
	asker   chan asking // full while no delivery asks
}

type waiter struct {
	version int64
	reached chan struct{}
}

// How often a line asks whether another process advanced its aggregate.
const (
	firstAsk = 10 * time.Millisecond
	lastAsk  = 500 * time.Millisecond
)

// asking is the state that one asking delivery hands on to the next.
type asking struct {
	pause time.Duration
	seen  int64
}

// answered returns how soon to ask again after the database answered with version.
func (a asking) answered(version int64) asking {
	if version > a.seen {
		return asking{pause: firstAsk, seen: version}
	}
	return asking{pause: min(2*a.pause, lastAsk), seen: a.seen}
}

// join adds a delivery that waits for a version of an aggregate. tell closes reached.
func (a *advances) join(aggregate string, version int64) (l *line, reached <-chan struct{}, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l = a.lines[aggregate]
	if l == nil {
		l = &line{waiting: make(map[*waiter]struct{}), asker: make(chan asking, 1)}
		l.asker <- asking{pause: firstAsk, seen: -1}
		if a.lines == nil {
			a.lines = make(map[string]*line)
		}
		a.lines[aggregate] = l
	}
	w := &waiter{version: version, reached: make(chan struct{})}
	l.waiting[w] = struct{}{}
	return l, w.reached, func() { a.leave(aggregate, l, w) }
}

func (a *advances) leave(aggregate string, l *line, w *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(l.waiting, w)
	if len(l.waiting) == 0 && a.lines[aggregate] == l {
		delete(a.lines, aggregate)
	}
}

// tell wakes the deliveries that wait for version or an older one.
func (a *advances) tell(aggregate string, version int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lines[aggregate]
	if l == nil {
		return
	}
	for w := range l.waiting {
		if w.version <= version {
			close(w.reached)
			delete(l.waiting, w)
		}
	}
}

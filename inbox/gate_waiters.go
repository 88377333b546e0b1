package inbox

import (
	"sync"
	"time"
)

// waiters is the table of a consumer's messages that wait in memory for their predecessors. It is bounded,
// because each of them takes a place of what the source keeps in flight, where its predecessor must fit too.
type waiters struct {
	mu      sync.Mutex
	inside  int              // deliveries of the source under way
	most    [2]int           // … at once, in this period and in the one before
	since   time.Time        // when this period began
	moves   int64            // deliveries that began or ended
	waiting int              // how many wait …
	bytes   int              // … and the bytes of their payloads
	others  time.Time        // until then another process is expected to apply predecessors
	lines   map[string]*line // by aggregate
}

const (
	maxWaiting      = 256
	maxWaitingBytes = 16 << 20
	windowPeriod    = 10 * time.Second
	othersFor       = 10 * time.Second
)

// line is the messages that wait for one aggregate. One of them at a time asks the database for all.
type line struct {
	aggregate string
	current   int64 // the version that was told last
	waiting   map[*waiter]struct{}
	asker     chan asking // full while no delivery asks
}

type waiter struct {
	line    *line
	version int64
	bytes   int
	turn    chan bool // gets whether the predecessor was applied; if not, another message needs the place
}

// How often a line asks whether another process advanced its aggregate.
const (
	firstAsk = 25 * time.Millisecond
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
	return asking{pause: min(max(2*a.pause, firstAsk), lastAsk), seen: a.seen}
}

// enter counts a delivery of the source.
func (w *waiters) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moves++
	w.inside++
	if w.inside > w.most[0] {
		w.most[0] = w.inside
	}
	if now := time.Now(); now.Sub(w.since) > windowPeriod {
		w.since, w.most = now, [2]int{w.inside, w.most[0]}
	}
}

func (w *waiters) exit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moves++
	w.inside--
}

// moved returns a number that changes whenever a delivery begins or ends.
func (w *waiters) moved() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.moves
}

// stuck reports whether all that the source has in flight waits.
func (w *waiters) stuck() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting >= w.inside
}

// places returns how many messages may wait: three quarters of what the source keeps in flight, as far as it
// was seen. The caller holds the lock.
func (w *waiters) places() int { return min(max(w.most[0], w.most[1])*3/4, maxWaiting) }

// open reports whether any message may wait.
func (w *waiters) open() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.places() > 0
}

// join adds a message that brings an aggregate to version, of which this process knows that it is at current.
// If there is no place, the message that is the farthest from its turn leaves; if that is this one, or if no
// place is large enough, join returns nil.
func (w *waiters) join(aggregate string, version, current int64, bytes int) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes > maxWaitingBytes {
		return nil
	}
	for w.waiting >= w.places() || w.bytes+bytes > maxWaitingBytes {
		far := w.farthest()
		if far == nil || far.version-far.line.current <= version-current {
			return nil
		}
		far.turn <- false
		w.remove(far)
	}
	l := w.lines[aggregate]
	if l == nil {
		l = &line{aggregate: aggregate, current: current, waiting: make(map[*waiter]struct{}), asker: make(chan asking, 1)}
		l.asker <- asking{seen: -1}
		if w.lines == nil {
			w.lines = make(map[string]*line)
		}
		w.lines[aggregate] = l
	}
	own := &waiter{line: l, version: version, bytes: bytes, turn: make(chan bool, 1)}
	l.waiting[own] = struct{}{}
	w.waiting++
	w.bytes += bytes
	return own
}

// farthest returns the message that is the farthest from its turn. The caller holds the lock.
func (w *waiters) farthest() (far *waiter) {
	for _, l := range w.lines {
		for one := range l.waiting {
			if far == nil || one.version-l.current > far.version-far.line.current {
				far = one
			}
		}
	}
	return far
}

func (w *waiters) leave(one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(one)
}

// remove removes a message, once. The caller holds the lock.
func (w *waiters) remove(one *waiter) {
	l := one.line
	if _, waits := l.waiting[one]; !waits {
		return
	}
	delete(l.waiting, one)
	w.waiting--
	w.bytes -= one.bytes
	if len(l.waiting) == 0 && w.lines[l.aggregate] == l {
		delete(w.lines, l.aggregate)
	}
}

// tell gives the messages that wait for version, or for an older one, their turn.
func (w *waiters) tell(aggregate string, version int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[aggregate]
	if l == nil {
		return
	}
	l.current = max(l.current, version)
	for one := range l.waiting {
		if one.version <= following(version) {
			one.turn <- true
			w.remove(one)
		}
	}
}

// sawOthers notes that another process applied a predecessor.
func (w *waiters) sawOthers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.others = time.Now().Add(othersFor)
}

// firstAsk returns how soon the one that asks next asks: at once if another process may have applied the
// predecessor already.
func (w *waiters) firstAsk(a asking) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case a.pause > 0:
		return a.pause
	case time.Now().Before(w.others):
		return 0
	}
	return firstAsk
}

package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// notifier wakes relays of other processes by a NOTIFY outside the business transaction: inside,
// every commit would queue for one lock. When several goroutines call it, one sends for all.
type notifier struct {
	tables *tables
	mu     sync.Mutex // held while one sends
	again  atomic.Bool
	sent   time.Time
}

// quiet is how long one notice serves for all commits: a relay that was woken goes on looking
// by itself for longer than that.
const quiet = 10 * time.Millisecond

// notify has a notice sent that covers the caller's commit: by the caller, or by another caller
// that is sending already and then sends once more. A notice that cannot be sent costs time:
// relays find the messages when they next look.
func (n *notifier) notify() {
	if !n.tables.sql.Notifies {
		return
	}
	n.again.Store(true)
	for n.again.Load() && n.mu.TryLock() {
		n.again.Store(false)
		n.send()
	}
}

// send sends a notice, unless one was sent just now, and unlocks mu.
func (n *notifier) send() {
	defer n.mu.Unlock() // also where the driver panics
	if time.Since(n.sent) < quiet {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.sent = time.Now()
	_, _ = n.tables.db.ExecContext(ctx, n.tables.sql.Notify) // relays look by themselves too
}

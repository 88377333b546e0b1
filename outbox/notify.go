package outbox

import (
	"context"
	"sync"
	"time"
)

// notifier wakes relays of other processes by a NOTIFY outside the business transaction: in
// it, every commit would queue for one lock. Of callers at the same time one sends for all.
type notifier struct {
	database *database
	mu       sync.Mutex
	sent     time.Time
}

// quiet is how long a notice is enough: a relay that was woken looks again by itself for
// longer than that.
const quiet = 10 * time.Millisecond

// notify returns once a notice is out that covers the caller's commit, or could not be
// sent: then relays find the messages when they next look.
func (n *notifier) notify() {
	if !n.database.sql.Notifies {
		return
	}
	called := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if called.Before(n.sent.Add(quiet)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.sent = time.Now()
	_, _ = n.database.db.ExecContext(ctx, n.database.sql.Notify) // relays look by themselves too
}

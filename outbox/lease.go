package outbox

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// lease is a relay's right to send, for as long as the database lets it. It is judged by
// the local monotonic clock, so that a process that was frozen knows at once.
type lease struct {
	token int64
	began time.Time
	until atomic.Int64 // after began
}

func newLease() *lease {
	return &lease{token: rand.Int64N(1<<62) + 1, began: time.Now()} //nolint:gosec // unique, not secret
}

// extend notes that the lease was granted for d by a statement sent at the given time. A
// tenth is kept back for clocks that run at different speeds.
func (l *lease) extend(sent time.Time, d time.Duration) {
	l.until.Store(int64(sent.Sub(l.began) + d - d/10))
}

// valid reports whether nobody else can have taken the shards.
func (l *lease) valid() bool { return int64(time.Since(l.began)) < l.until.Load() }

// end gives the right up.
func (l *lease) end() { l.until.Store(0) }

package outbox

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// lease is a relay's right to send, for as long as the database lets it. It is judged by
// the local monotonic clock, so that a process that was frozen knows at once; and by the
// time of day too, since the monotonic clock stands still while a machine sleeps.
type lease struct {
	token int64
	began time.Time
	until atomic.Int64 // after began
	clock atomic.Int64 // the same as a time of day, in nanoseconds
}

func newLease() *lease {
	return &lease{token: rand.Int64N(1<<62) + 1, began: time.Now()} //nolint:gosec // unique, not secret
}

// extend notes that the lease was granted for d by a statement sent at the given time. A
// tenth is kept back for clocks that run at different speeds.
func (l *lease) extend(sent time.Time, d time.Duration) {
	d -= d / 10
	l.clock.Store(sent.Add(d).UnixNano())
	l.until.Store(int64(sent.Sub(l.began) + d))
}

// valid reports whether nobody else can have taken the shards.
func (l *lease) valid() bool {
	now := time.Now()
	return int64(now.Sub(l.began)) < l.until.Load() && now.UnixNano() < l.clock.Load()
}

// end gives the right up.
func (l *lease) end() { l.until.Store(0) }

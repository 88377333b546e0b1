package outbox

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// lease is a relay's right to send for a time that the database grants. The relay judges it by
// the local monotonic clock, so that a process that was frozen knows at once, and by the time
// of day, since the monotonic clock stands still while a machine sleeps.
type lease struct {
	token int64
	began time.Time
	until atomic.Int64 // when it ends, as a duration after began
	clock atomic.Int64 // when it ends, as a time of day in nanoseconds

	doubts   atomic.Int64 // how often a write suggested that the database has ended it
	resolved atomic.Int64 // how many of them were before the keeper last found it there
	doubted  chan struct{}
}

func newLease() *lease {
	token := rand.Int64N(1<<62) + 1 //nolint:gosec // unique, not secret
	return &lease{token: token, began: time.Now(), doubted: make(chan struct{}, 1)}
}

// extend notes that the database granted the lease for d, by a statement sent at the given
// time. It uses nine tenths of that, as clocks run at different speeds.
func (l *lease) extend(sent time.Time, d time.Duration) {
	d -= d / 10
	l.clock.Store(sent.Add(d).UnixNano())
	l.until.Store(int64(sent.Sub(l.began) + d))
}

// valid reports whether no other relay can have taken the shards.
func (l *lease) valid() bool {
	now := time.Now()
	return int64(now.Sub(l.began)) < l.until.Load() && now.UnixNano() < l.clock.Load()
}

// doubt has the keeper look at once whether the database still grants the lease: it ends there
// early if the clock is set, or a replica takes over that lagged behind.
func (l *lease) doubt() {
	l.doubts.Add(1)
	select {
	case l.doubted <- struct{}{}:
	default:
	}
}

// doubtful reports whether the keeper has yet to look.
func (l *lease) doubtful() bool { return l.resolved.Load() < l.doubts.Load() }

// end gives the lease up.
func (l *lease) end() { l.until.Store(0) }

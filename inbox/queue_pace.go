package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// pace slows down a source that redelivers at once what cannot be handled.
type pace struct {
	mu    sync.Mutex
	times int // in a row
	last  time.Time
}

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	paceForgets  = time.Minute
)

// wait returns after a random pause whose bound grows with each call, or when ctx ends.
func (p *pace) wait(ctx context.Context) {
	p.mu.Lock()
	if time.Since(p.last) > paceForgets {
		p.times = 0
	}
	longest := longestPause
	if p.times < 6 { // 100 ms doubled six times is longer
		longest = firstPause << p.times
	}
	p.times++
	p.last = time.Now()
	p.mu.Unlock()
	_ = sleep(ctx, longest/2+rand.N(longest/2)) //nolint:gosec // jitter needs no secrecy
}

// doubt is wait, if a run failed because a step is in doubt, and no queue delivers the message. The next run fails, too,
// until somebody decides.
func (p *pace) doubt(ctx context.Context, cause error) {
	if errors.Is(cause, ErrInDoubt) && deliveredBy(ctx) == nil {
		p.wait(ctx)
	}
}

// reject ends a delivery that must not reach a handler. The message goes back to its source after
// a pause, unless a queue, which has pauses of its own, delivers it from the table.
func (c *claimConsumer) reject(d *delivery, err error) error {
	d.interrupted(err)
	if d.lease == nil && !answered(d.msg) {
		c.pace.wait(d.ctx)
	}
	return d.fail(err)
}

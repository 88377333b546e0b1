// Package outage keeps a service from hammering a server that is down.
package outage

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// The pauses between two probes grow from First to Longest, each with full jitter above
// half of it.
const (
	First   = 100 * time.Millisecond
	Longest = 5 * time.Second
)

// Breaker notices an outage. While it lasts one caller at a time probes the server; the
// others wait for what the probe finds. The zero value is ready to use.
type Breaker struct {
	down atomic.Bool

	mu      sync.Mutex
	pause   time.Duration
	probing bool
	over    chan struct{} // closed when the outage ends
}

// Enter lets the caller through at once while there is no outage, and as the one probe
// while there is. Otherwise it waits, for at most the current pause, and reports false
// if the outage went on.
func (b *Breaker) Enter(ctx context.Context) bool {
	if !b.down.Load() {
		return true
	}
	b.mu.Lock()
	if !b.down.Load() {
		b.mu.Unlock()
		return true
	}
	if !b.probing {
		b.probing = true
		b.mu.Unlock()
		return true
	}
	over, pause := b.over, b.pause
	b.mu.Unlock()
	return wait(ctx, over, pause)
}

// Up says that the server answered.
func (b *Breaker) Up() {
	if !b.down.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down.Load() {
		b.down.Store(false)
		b.pause, b.probing = 0, false
		close(b.over)
	}
}

// Down says that the server did not answer, and pauses the caller: it returns after a
// wait that grows with each failed probe, when the outage ends, or when ctx ends. It
// reports whether this call began the outage.
func (b *Breaker) Down(ctx context.Context) (began bool) {
	b.mu.Lock()
	if began = !b.down.Load(); began {
		b.over = make(chan struct{})
		b.pause, b.probing = First, true
		b.down.Store(true)
	} else if b.pause *= 2; b.pause > Longest {
		b.pause = Longest
	}
	over, pause := b.over, b.pause
	b.mu.Unlock()

	wait(ctx, over, pause)

	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
	return began
}

// Cancel says that the caller, let through by Enter, ended without asking the server.
func (b *Breaker) Cancel() {
	if !b.down.Load() {
		return
	}
	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
}

func wait(ctx context.Context, over <-chan struct{}, pause time.Duration) (ended bool) {
	timer := time.NewTimer(pause/2 + rand.N(pause/2+1)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

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
	First   = 250 * time.Millisecond
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

// Pass lets one call through to the server; the call says what it found.
type Pass struct {
	breaker *Breaker
	probe   chan struct{} // of the outage that this call probes
}

// Enter lets the caller through at once while there is no outage, and as the one probe
// while there is. Otherwise it waits, for at most the current pause, and reports false
// if the outage went on.
func (b *Breaker) Enter(ctx context.Context) (Pass, bool) {
	if !b.down.Load() {
		return Pass{breaker: b}, true
	}
	b.mu.Lock()
	if !b.down.Load() {
		b.mu.Unlock()
		return Pass{breaker: b}, true
	}
	if !b.probing {
		b.probing = true
		pass := Pass{breaker: b, probe: b.over}
		b.mu.Unlock()
		return pass, true
	}
	over, pause := b.over, b.pause
	b.mu.Unlock()
	return Pass{breaker: b}, wait(ctx, over, pause)
}

// Up says that the server answered. It reports whether this call ended an outage.
func (p Pass) Up() (ended bool) {
	b := p.breaker
	if !b.down.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.down.Load() {
		return false
	}
	b.down.Store(false)
	b.pause, b.probing = 0, false
	close(b.over)
	return true
}

// Down says that the server did not answer, and pauses the caller: it returns after a
// wait that grows with each failed probe, when the outage ends, or when ctx ends. It
// reports whether this call began the outage.
func (p Pass) Down(ctx context.Context) (began bool) {
	b := p.breaker
	b.mu.Lock()
	switch {
	case !b.down.Load():
		began = true
		b.over = make(chan struct{})
		b.pause, b.probing = First, true
		b.down.Store(true)
	case p.probe == b.over:
		b.pause = min(2*b.pause, Longest)
	}
	over, pause := b.over, b.pause
	b.mu.Unlock()

	wait(ctx, over, pause)
	if began || p.probe == over {
		b.letNextProbe(over)
	}
	return began
}

// Tell calls f, a function of the user's, before the call says what it found. Should f panic,
// the call has no answer.
func (p Pass) Tell(f func()) {
	returned := false
	defer func() {
		if !returned {
			p.Cancel()
		}
	}()
	f()
	returned = true
}

// Cancel says that the caller ended without an answer about the server.
func (p Pass) Cancel() {
	if p.probe != nil {
		p.breaker.letNextProbe(p.probe)
	}
}

// letNextProbe ends the probe of one outage, which may be over and another begun.
func (b *Breaker) letNextProbe(outage chan struct{}) {
	b.mu.Lock()
	if b.over == outage {
		b.probing = false
	}
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

// Package outage limits how often a service calls a server that is down.
package outage

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// The pause between two probes grows from First to Longest. Each pause is random, between half its
// length and its length.
const (
	First   = 250 * time.Millisecond
	Longest = 5 * time.Second
)

// Breaker detects an outage. During an outage one caller at a time probes the server, and the
// others wait for its answer. The zero value is ready to use.
type Breaker struct {
	down atomic.Bool

	mu      sync.Mutex
	pause   time.Duration
	probing bool
	over    chan struct{} // closed when the outage ends
}

// Pass admits one call to the server. The call must end with Up, Down or Cancel.
type Pass struct {
	breaker *Breaker
	probe   chan struct{} // of the outage that this call probes
}

// Enter admits the caller at once if there is no outage, or if the caller is the probe. Otherwise
// it waits, at most for the current pause, and returns false if the outage continues.
func (b *Breaker) Enter(ctx context.Context) (Pass, bool) {
	if !b.down.Load() {
		return Pass{breaker: b}, true
	}
	b.mu.Lock()
	pass, admitted := b.admit()
	over, pause := b.over, b.pause
	b.mu.Unlock()
	if admitted {
		return pass, true
	}
	return pass, wait(ctx, over, pause)
}

// TryEnter is Enter for a caller that must not wait. It returns false if another caller probes the server.
func (b *Breaker) TryEnter() (Pass, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.admit()
}

// admit admits a caller if there is no outage, or as the probe if there is none. The caller of admit holds the lock.
func (b *Breaker) admit() (pass Pass, admitted bool) {
	if !b.down.Load() {
		return Pass{breaker: b}, true
	}
	if b.probing {
		return Pass{breaker: b}, false
	}
	b.probing = true
	return Pass{breaker: b, probe: b.over}, true
}

// Probes reports whether the call is a probe, for whose answer others wait.
func (p Pass) Probes() bool { return p.probe != nil }

// Yield lets another caller probe. The call goes on like one that was admitted before the outage.
func (p *Pass) Yield() {
	p.Cancel()
	p.probe = nil
}

// Up reports that the server answered. It returns true if this ended an outage.
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

// Down reports that the server did not answer. It pauses the caller for a time that grows with each
// failed probe, until the outage or ctx ends. It returns true if this call began the outage.
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

// Tell calls f, a function of the user's, before the call reports an answer. If f panics, the call
// is cancelled.
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

// Cancel ends the call without an answer about the server.
func (p Pass) Cancel() {
	if p.probe != nil {
		p.breaker.letNextProbe(p.probe)
	}
}

// letNextProbe ends the probe of one outage. That outage may be over, and another one may have
// begun.
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

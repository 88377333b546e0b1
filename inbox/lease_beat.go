package inbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// heart extends the leases of one consumer whose handlers run. It beats only while there
// are any: one timer serves them all, and a handler that is done before the next beat
// costs none.
type heart struct {
	mu      sync.Mutex
	timer   *time.Timer
	beating bool
	held    map[*Lease]struct{}
}

// beats is how many heartbeats a lease has time for: all but the last may get lost.
const beats = 3

// keep lets the lease be extended from now on, where the store can.
func (l *Lease) keep() {
	c := l.consumer
	h := &c.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	l.sure = l.began.Add(c.config.Lease)
	if c.leases.extender == nil {
		return
	}
	if h.held == nil {
		h.held = make(map[*Lease]struct{})
	}
	h.held[l] = struct{}{}
	if !h.beating {
		h.beating = true
		c.beatLater()
	}
}

// keepNoLonger ends that, and says until when the lease is certainly held.
func (l *Lease) keepNoLonger() (sure time.Time) {
	h := &l.consumer.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, l)
	return l.sure
}

// beatLater arms the timer. The caller holds the lock.
func (c *LeaseConsumer) beatLater() {
	interval := c.config.Lease / beats
	if c.heart.timer == nil {
		c.heart.timer = time.AfterFunc(interval, c.beat)
		return
	}
	c.heart.timer.Reset(interval)
}

// beat extends every lease that is held, each in a goroutine of its own: a store that is
// slow to answer for one must not cost the others.
func (c *LeaseConsumer) beat() {
	h := &c.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held) == 0 {
		h.beating = false
		return
	}
	for l := range h.held {
		go l.beat()
	}
	c.beatLater()
}

// beat extends the lease. Who loses it is told by its context.
func (l *Lease) beat() {
	l.outlive(func() { _ = l.extend() }, func() {})
}

// outlive does work in a goroutine of ours, in which nobody is above a function of the service's that
// panics.
func (l *Lease) outlive(work, end func()) {
	returned := false
	defer func() {
		r := recover()
		if returned {
			return
		}
		end()
		if owner := l.consumer.leases.owner; owner != nil {
			owner.panics.Add(1)
		}
		l.consumer.leases.log.Error("inbox: a function panicked beside or after a handler; it goes on", unreturned(r), nil)
	}()
	work()
	returned = true
}

// extendOnce is extend after the handler, of which nobody is told any more should the store panic: the
// key is free then.
func (l *Lease) extendOnce() error {
	returned := false
	defer func() {
		if !returned {
			_ = l.Release(errPanic)
		}
	}()
	err := l.extend()
	returned = true
	return err
}

// extend extends the lease now, where the store can. It ends the handler's context if the
// lease was lost.
func (l *Lease) extend() error {
	c := l.consumer
	if c.leases.extender == nil {
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), c.config.Lease/beats)
	defer cancel()
	err := c.leases.extender.Extend(ctx, l.id, l.token, c.config.Lease)

	h := &c.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, held := h.held[l]; !held {
		return nil // ended meanwhile
	}
	if err == nil {
		l.sure = began.Add(c.config.Lease)
	}
	if errors.Is(err, ErrLeaseLost) {
		delete(h.held, l)
		l.cancel(err)
	}
	return err
}

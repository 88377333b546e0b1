package inbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// heart extends the leases of one consumer while their handlers run. One timer serves them all, and
// runs only while there are any; a handler that ends before the next beat costs no statement.
type heart struct {
	mu      sync.Mutex
	timer   *time.Timer
	beating bool
	held    map[*leaseDelivery]bool // whether a beat extends it already
}

const (
	beats       = 3  // in the time of a lease
	beatRetries = 60 // in the time of a lease, while the store does not answer
)

// keep has the heartbeat extend the lease from now on, if the store can.
func (l *leaseDelivery) keep() {
	c := l.consumer
	h := &c.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	l.sure = l.began.Add(c.config.Lease)
	if c.leases.extender == nil {
		return
	}
	if h.held == nil {
		h.held = make(map[*leaseDelivery]bool)
	}
	h.held[l] = false
	if !h.beating {
		h.beating = true
		c.beatLater()
	}
}

// keepNoLonger ends that, and returns until when the lease is certainly held.
func (l *leaseDelivery) keepNoLonger() (sure time.Time) {
	h := &l.consumer.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, l)
	return l.sure
}

// beatLater starts the timer. The caller holds the lock.
func (c *leaseConsumer) beatLater() {
	interval := c.config.Lease / beats
	if c.heart.timer == nil {
		c.heart.timer = time.AfterFunc(interval, c.beat)
		return
	}
	c.heart.timer.Reset(interval)
}

// beat extends every lease that is held, each in a goroutine of its own, so that a slow answer for
// one does not cost the others theirs.
func (c *leaseConsumer) beat() {
	h := &c.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held) == 0 {
		h.beating = false
		return
	}
	for l, extended := range h.held {
		if !extended {
			h.held[l] = true
			go l.beat()
		}
	}
	c.beatLater()
}

// beat extends the lease. If the store does not answer, beat comes again soon, for as long as nobody else can take
// the lease. A handler whose lease was lost learns of it by its context.
func (l *leaseDelivery) beat() {
	if !l.extends(true) {
		return
	}
	again := false
	defer func() {
		if !again {
			l.extends(false)
		}
	}()
	l.outlive(func() { again = l.extend() != nil && l.beatAgain() }, func() {})
}

// extends notes whether a beat extends the lease, and reports whether the lease is still kept.
func (l *leaseDelivery) extends(now bool) (kept bool) {
	h := &l.consumer.heart
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, kept = h.held[l]; kept {
		h.held[l] = now
	}
	return kept
}

// beatAgain starts the timer of the next try, unless others may have the lease by now.
func (l *leaseDelivery) beatAgain() bool {
	c := l.consumer
	c.heart.mu.Lock()
	defer c.heart.mu.Unlock()
	if _, kept := c.heart.held[l]; !kept || !lasts(l.sure) {
		return false
	}
	time.AfterFunc(max(c.config.Lease/beatRetries, 10*time.Millisecond), l.beat)
	return true
}

// outlive runs work in a goroutine of ours, where nothing else recovers a panic of the service's
// functions. After a panic it calls end.
func (l *leaseDelivery) outlive(work, end func()) {
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

// extendOnce is extend after the handler has returned. If the store panics, it frees the key.
func (l *leaseDelivery) extendOnce() error {
	returned := false
	defer func() {
		if !returned {
			_ = l.release(errPanic)
		}
	}()
	err := l.extend()
	returned = true
	return err
}

// extend extends the lease now, if the store can. If the lease was lost, extend ends the handler's
// context.
func (l *leaseDelivery) extend() error {
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
		return err // ended meanwhile, or found lost before
	}
	if err == nil {
		l.sure = began.Add(c.config.Lease)
	}
	if errors.Is(err, ErrLeaseLost) {
		delete(h.held, l)
		l.sure = time.Time{}
		l.cancel(err)
	}
	return err
}

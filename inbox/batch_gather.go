package inbox

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// gathering collects members while a batch of their consumer runs. One member at a time leads: it runs the next
// batch in its own goroutine.
type gathering struct {
	mu      sync.Mutex
	waiting []*member // in order of arrival
	bytes   int       // of waiting
	led     bool
	joined  chan struct{} // has a token if a member joined while the leader lingers; nil if none does
	urgent  bool          // the version gate released one that waits, and what it holds behind that one waits too
}

// gathered is the state of a member in a gathering.
type gathered struct {
	size    int
	arrived time.Time
	said    chan said // holds one

	batch    *batch // once it was taken into one
	gone     atomic.Bool
	answered bool   // only the leader uses it
	next     func() // makes another member lead, once; nil unless m leads
}

// said is what a waiting member is told.
type said struct {
	what ending
	err  error
}

// ending is how a member leaves the gathering.
type ending int

const (
	lead           ending = iota // it does not leave yet: it runs the next batch
	endedAlone                   // it is to be handled by itself
	endedCommitted               // it was handled
	endedAside                   // it was stored until its predecessor is applied, or a newer one was handled
	endedFailed                  // the handler nacked it, or committed the transaction itself and failed
	endedLeft                    // its context ended before a batch took it
)

// batch is the members that one leader takes at once.
type batch struct {
	ctx    context.Context //nolint:containedctx // ends when the contexts of all members have ended
	cancel context.CancelFunc
	live   atomic.Int64 // members that are not gone

	began    time.Time     // of its next transaction, for observers
	gathered time.Duration // 0 once an observer was told
}

// leave notes, once, that the context of m has ended or that m was answered.
func (m *member) leave() {
	if m.gone.CompareAndSwap(false, true) && m.batch.live.Add(-1) == 0 {
		m.batch.cancel()
	}
}

// gather returns how m is to end, after it has waited for others to run it in a batch, or has run one itself.
func (b *batches) gather(m *member) (ending, error) {
	if b.join(m) {
		b.run(m)
	}
	for {
		select {
		case s := <-m.said:
			if s.what != lead {
				return s.what, s.err
			}
			b.run(m)
		case <-m.delivery.ctx.Done():
			if b.part(m) {
				return endedLeft, m.delivery.ctx.Err()
			}
			m.leave()
			if s := <-m.said; s.what != lead {
				return s.what, s.err
			}
			b.run(m) // cannot be: whoever leads is waiting, and would have parted
		}
	}
}

// join adds m, and reports whether it leads.
func (g *gathering) join(m *member) (leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting, g.bytes = append(g.waiting, m), g.bytes+m.size
	g.urgent = g.urgent || m.released()
	if g.joined != nil {
		select {
		case g.joined <- struct{}{}:
		default:
		}
	}
	leads = !g.led
	g.led = true
	if leads {
		m.next = sync.OnceFunc(g.handOver)
	}
	return leads
}

// part removes m if no batch has taken it. If it was to lead, another member does.
func (g *gathering) part(m *member) bool {
	g.mu.Lock()
	i := slices.Index(g.waiting, m)
	if i < 0 {
		g.mu.Unlock()
		return false
	}
	g.waiting, g.bytes = slices.Delete(g.waiting, i, i+1), g.bytes-m.size
	next := m.next
	g.mu.Unlock()
	if next != nil {
		next()
	}
	return true
}

// handOver makes the first member that waits lead.
func (g *gathering) handOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.led = len(g.waiting) > 0
	if g.led {
		first := g.waiting[0]
		first.next = sync.OnceFunc(g.handOver)
		first.said <- said{what: lead}
	}
}

// freeLead makes another member lead if m does.
func (m *member) freeLead() {
	if m.next != nil {
		m.next()
	}
}

// take returns the members of the next batch: m, which leads, and those that wait with it.
func (b *batches) take(m *member) []*member {
	if b.limits.Linger > 0 {
		b.linger(m)
	}
	// When a batch ends, its members are acked at once, and their successors arrive at once.
	for n := 0; n < b.ready(); {
		n = b.ready()
		runtime.Gosched()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for _, one := range b.waiting {
		if n == b.limits.Max || n > 0 && bytes+one.size > b.limits.MaxBytes {
			break
		}
		n, bytes = n+1, bytes+one.size
	}
	all := slices.Clone(b.waiting[:n])
	b.waiting, b.bytes = slices.Delete(b.waiting, 0, n), b.bytes-bytes
	b.urgent = slices.ContainsFunc(b.waiting, (*member).released)
	of := &batch{}
	of.ctx, of.cancel = context.WithCancel(context.Background())
	of.live.Store(int64(n))
	for _, one := range all {
		one.batch = of
	}
	of.begin(all[0])
	return all
}

// ready returns how many members wait, and -1 if they fill a batch.
func (b *batches) ready() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) >= b.limits.Max || b.bytes >= b.limits.MaxBytes {
		return -1
	}
	return len(b.waiting)
}

func (m *member) released() bool { return m.delivery.lease != nil && m.delivery.released() }

func (b *batches) hurries() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.urgent
}

// linger waits until the batch is full or urgent, at most Linger.
func (b *batches) linger(m *member) {
	joined := make(chan struct{}, 1)
	b.mu.Lock()
	b.joined = joined
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.joined = nil
		b.mu.Unlock()
	}()
	timer := time.NewTimer(b.limits.Linger)
	defer timer.Stop()
	for b.ready() >= 0 && !b.hurries() {
		select {
		case <-joined:
		case <-timer.C:
			return
		case <-m.delivery.ctx.Done():
			return
		}
	}
}

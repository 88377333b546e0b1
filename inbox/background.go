package inbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// background knows what goes on in a Store: deliveries in flight and runs of the janitor.
type background struct {
	created  time.Time
	inFlight atomic.Int64
	closing  atomic.Bool
	idle     chan struct{} // gets a token when the last delivery ends after closing began
	closed   chan struct{}
	once     sync.Once

	runners sync.WaitGroup
	expects atomic.Bool // someone runs, or is about to run, the background work
	warned  atomic.Bool
}

func (b *background) init() {
	b.created = time.Now()
	b.idle = make(chan struct{}, 1)
	b.closed = make(chan struct{})
}

// enter admits a delivery unless the Store is closed.
func (b *background) enter() bool {
	b.inFlight.Add(1)
	if b.closing.Load() {
		b.leave()
		return false
	}
	return true
}

func (b *background) leave() {
	if b.inFlight.Add(-1) == 0 && b.closing.Load() {
		select {
		case b.idle <- struct{}{}:
		default:
		}
	}
}

// Close takes no more deliveries, waits for the handlers in flight, settles what was
// published and stops the background work, all until ctx ends at the latest. Call it when
// Router.Run has returned, before closing the pool. What could not be settled is published
// once more, with the same UUIDs, when its message is redelivered.
func (s *Store) Close(ctx context.Context) error {
	b := &s.work
	b.closing.Store(true)
	for b.inFlight.Load() > 0 {
		select {
		case <-b.idle:
		case <-ctx.Done():
			return fmt.Errorf("inbox: close: %d handlers are still running: %w", b.inFlight.Load(), ctx.Err())
		}
	}
	b.once.Do(func() { close(b.closed) })
	b.runners.Wait()
	if err := s.settle(ctx); err != nil {
		return fmt.Errorf("inbox: close: settle: %w", explain(err))
	}
	return nil
}

// settlePause is how long an acked outcome waits to be settled along with others.
const settlePause = 200 * time.Millisecond

// Run does the background work until ctx ends or the Store is closed: it settles what was
// published, and deletes what is older than each consumer's retention. Failures are logged
// and tried again. [Store.Plugin] calls it; without a router's plugin call it yourself.
func (s *Store) Run(ctx context.Context) error {
	s.work.expects.Store(true)
	s.work.runners.Add(1)
	defer s.work.runners.Done()

	settling := time.NewTicker(settlePause)
	defer settling.Stop()
	purging := time.NewTicker(s.config.PurgeInterval)
	defer purging.Stop()
	janitor := newJanitor(s)
	janitor.run(ctx)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
			defer cancel()
			return s.settle(last)
		case <-s.work.closed:
			return nil
		case <-settling.C:
			if err := s.settle(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("inbox: what was published could not be settled; tried again", err, nil)
			}
		case <-purging.C:
			janitor.run(ctx)
		}
	}
}

// warnUnattended says once that nobody runs the background work.
func (s *Store) warnUnattended() {
	const grace = time.Minute
	b := &s.work
	if b.expects.Load() || b.warned.Load() || time.Since(b.created) < grace {
		return
	}
	if b.warned.CompareAndSwap(false, true) {
		s.log.Error("inbox: nothing is purged and nothing is settled in batches", errUnattended, nil)
	}
}

var errUnattended = fmt.Errorf("add router.AddPlugin(store.Plugin()), or call store.Run")

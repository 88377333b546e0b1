package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// background knows what goes on in a Store: deliveries in flight and runs of the janitor.
type background struct {
	created  time.Time
	inFlight atomic.Int64
	closing  atomic.Bool
	idle     chan struct{} // gets a token when the last delivery ends after closing began
	closed   chan struct{}
	once     sync.Once
	mu       sync.Mutex // a run begins either before closing, or not at all

	routers sync.Map      // that have the plugin
	turn    chan struct{} // full while a router works for the Store

	runners sync.WaitGroup
	expects atomic.Bool // someone runs, or is about to run, the background work
	warned  atomic.Bool
}

func (b *background) init() {
	b.created = time.Now()
	b.idle = make(chan struct{}, 1)
	b.closed = make(chan struct{})
	b.turn = make(chan struct{}, 1)
}

// takeTurn waits until no other router works for the Store. It returns false if ctx ends, or the Store is closed, before.
func (b *background) takeTurn(ctx context.Context) bool {
	select {
	case b.turn <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-b.closed:
	}
	return false
}

func (b *background) endTurn() { <-b.turn }

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
// published, writes the last of admin.Admin.Activity and stops the background work, all until ctx
// ends at the latest. Call it when
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
	select { // another Close may wait too
	case b.idle <- struct{}{}:
	default:
	}
	b.stop()
	select {
	case <-b.stopped():
	case <-ctx.Done():
		return fmt.Errorf("inbox: close: the background work is still running: %w", ctx.Err())
	}
	err := s.settle(ctx)
	s.writeActivity(ctx)
	if err != nil {
		return fmt.Errorf("inbox: close: settle: %w", database.Explain(err))
	}
	return nil
}

// begin counts a run of the background work, unless the Store is closed.
func (b *background) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
		return false
	default:
		b.runners.Add(1)
		return true
	}
}

func (b *background) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.once.Do(func() { close(b.closed) })
}

func (b *background) stopped() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		b.runners.Wait()
		close(ended)
	}()
	return ended
}

// settlePause is how long an acked outcome waits to be settled along with others.
const settlePause = 200 * time.Millisecond

// Run does the background work until ctx ends or the Store is closed: it settles what was
// published, deletes what is older than each consumer's retention, writes down what
// admin.Admin.Activity tells, and analyses tables of PostgreSQL that have outgrown their
// statistics. Failures are logged and tried again. [Store.Plugin] calls it; without a router's
// plugin call it yourself, and set Config.WithoutPlugin where there is a router.
func (s *Store) Run(ctx context.Context) error {
	if !s.work.begin() {
		return ErrClosed
	}
	defer s.work.runners.Done()
	s.work.expects.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.work.closed:
			cancel()
		case <-ctx.Done():
		}
	}()

	var watch sync.WaitGroup
	watch.Go(func() { s.repeat(ctx, settlePause, s.settleAgain) })
	watch.Go(func() { s.repeat(ctx, identityPause, s.recognise) })
	watch.Go(func() {
		s.repeat(ctx, min(activityPause, s.config.PurgeInterval), func(ctx context.Context) {
			s.writeActivity(context.WithoutCancel(ctx)) // what is cut off as it commits would count twice
		})
	})
	if s.dialect.Name == dialect.PostgresName {
		watch.Go(func() { s.repeat(ctx, statisticsPause, newStatistics(s).run) })
	}
	janitor := newJanitor(s)
	watch.Go(func() { s.repeat(ctx, min(heldLook, s.config.PurgeInterval), newJanitor(s).expire) })
	s.survive(ctx, janitor.run)
	s.repeat(ctx, s.config.PurgeInterval, janitor.run)
	watch.Wait()

	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancelLast()
	var err error
	s.survive(last, s.writeActivity)
	s.survive(last, func(ctx context.Context) { err = s.settle(ctx) })
	return err
}

// repeat does work after each pause, until ctx ends.
func (s *Store) repeat(ctx context.Context, pause time.Duration, work func(context.Context)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.survive(ctx, work)
		}
	}
}

// survive does work, and goes on where a function of the user's panics in it, or ends its goroutine.
func (s *Store) survive(ctx context.Context, work func(context.Context)) {
	ended := make(chan struct{})
	go func() {
		returned := false
		defer close(ended)
		defer func() {
			if r := recover(); !returned {
				s.panics.Add(1)
				s.log.Error("inbox: the background work panicked; it goes on", unreturned(r), nil)
			}
		}()
		work(ctx)
		returned = true
	}()
	<-ended
}

// unreturned says what ended a goroutine: a panic, or nil for runtime.Goexit.
func unreturned(reason any) error {
	if reason == nil {
		return errors.New("runtime.Goexit")
	}
	return fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
}

// Panics returns how often a function of the service's, such as an observer, a codec, a key or the
// logger, panicked in a goroutine of ours: the background work of s, its queues, its leases. Each is
// logged too, or told by the error of the message, unless it is the logger's.
func (s *Store) Panics() int64 { return s.panics.Load() }

func (s *Store) settleAgain(ctx context.Context) {
	if err := s.settle(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("inbox: what was published could not be settled; tried again", database.Explain(err), nil)
	}
}

// identityPause is how long a cache may outlive the server it speaks of. database/sql
// opens a new connection in place of a dead one without a word.
const identityPause = time.Second

// recognise forgets everything when the server is another one than a moment ago.
func (s *Store) recognise(ctx context.Context) {
	identity, err := s.identify(ctx)
	if err != nil {
		_ = s.db.Noticed(err)
		return
	}
	before := s.identity.Swap(&identity)
	if before != nil && (before.Name != identity.Name || before.Uptime > identity.Uptime) {
		s.db.Forget()
		s.log.Info("inbox: the database server was restarted or replaced; what was remembered of it is dropped", nil)
	}
}

// identity tells one run of a server from another, by its name or by how long it has been up.
type identity struct {
	Name   string
	Uptime int64
}

func (s *Store) identify(ctx context.Context) (id identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	if err := s.db.QueryRowContext(ctx, s.dialect.SelectIdentity).Scan(&id.Name, &id.Uptime); err != nil {
		return id, fmt.Errorf("ask the server who it is: %w", err)
	}
	return id, nil
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

var errUnattended = errors.New("give the router the plugin (middleware.Inbox.AddTo adds it), or call store.Run")

var errUnguarded = errors.New("the plugin's guard stands outside this middleware.Inbox, which was given to a handler " +
	"while the router ran: give it to the router, or to the handler before Router.Run")

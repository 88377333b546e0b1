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

// background counts the deliveries in flight and the runs of the background work of a Store.
type background struct {
	deliveries

	created time.Time
	closed  chan struct{}
	once    sync.Once
	mu      sync.Mutex // makes a run begin before closed, or not at all

	routers sync.Map      // weak pointers to those with the plugin
	turn    chan struct{} // full while a router's plugin does the background work

	runners sync.WaitGroup
	expects atomic.Bool // something runs, or is about to run, the background work
	warned  atomic.Bool
}

func (b *background) init() {
	b.created = time.Now()
	b.deliveries.init()
	b.closed = make(chan struct{})
	b.turn = make(chan struct{}, 1)
}

// takeTurn waits until no other router's plugin does the background work. It returns false if ctx
// ends or the Store is closed before.
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

// Close admits no more deliveries, waits for the handlers in flight and until the answers to the
// stored messages that handlers have are recorded, stops the background work, settles published
// outcomes and writes the last counts of admin.Admin.Activity. It returns an
// error when ctx ends before that. Call it when Router.Run has returned, before closing the pool.
// An outcome that could not be settled is published once more, with the same UUIDs, when its
// message is redelivered.
func (s *Store) Close(ctx context.Context) error {
	b := &s.work
	if err := b.drain(ctx); err != nil {
		return err
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

// Run does the background work until ctx ends or the Store is closed. It settles published
// outcomes, deletes what is older than each consumer's retention, parks messages that the version
// gate has held too long, writes the counts of admin.Admin.Activity, lists this process for
// admin.Admin.Processes, and analyses PostgreSQL tables that have outgrown their statistics. It logs
// failures and tries again. [Store.Plugin] calls Run; without the plugin call it yourself, and set
// Config.WithoutPlugin if there is a router.
func (s *Store) Run(ctx context.Context) error {
	if !s.work.begin() {
		return ErrClosed
	}
	defer s.work.runners.Done()
	s.work.expects.Store(true)
	s.presence.come()
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
		s.survive(ctx, s.beat)
		s.repeat(ctx, min(activityPause, s.config.PurgeInterval), func(ctx context.Context) {
			s.writeActivity(context.WithoutCancel(ctx)) // counts whose commit is cut off would be added twice
			s.beat(ctx)
		})
	})
	if s.dialect.Name == dialect.PostgresName {
		watch.Go(func() { s.repeat(ctx, statisticsPause, newStatistics(s).run) })
	}
	watch.Go(func() { // by itself: the janitor can take hours
		s.survive(ctx, s.redispatch)
		s.repeat(ctx, s.config.PurgeInterval, s.redispatch)
	})
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
	s.survive(last, s.leave)
	return err
}

// repeat runs work after each pause, until ctx ends.
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

// survive runs work, and returns even if a function of the service panics in it or ends its
// goroutine.
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

// unreturned returns what ended a goroutine as an error: a panic, or runtime.Goexit if reason is
// nil.
func unreturned(reason any) error {
	if reason == nil {
		return errors.New("runtime.Goexit")
	}
	return fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
}

// Panics returns how often a function of the service, such as an observer, a codec, a key or the
// logger, has panicked in a goroutine of the Store's: in its background work, its queues or its
// leases. Each panic is also logged or in the error of its message, except those of the logger.
func (s *Store) Panics() int64 { return s.panics.Load() }

func (s *Store) settleAgain(ctx context.Context) {
	if err := s.settle(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("inbox: what was published could not be settled; tried again", database.Explain(err), nil)
	}
}

// identityPause is how long a cache may outlive the server that it describes: database/sql replaces
// dead connections silently.
const identityPause = time.Second

// recognise clears the caches if the server was restarted or replaced.
func (s *Store) recognise(ctx context.Context) {
	identity, err := s.identify(ctx)
	if err != nil {
		_ = s.db.Noticed(err)
		return
	}
	before := s.identity.Swap(&identity)
	if before != nil && (before.Name != identity.Name || before.Uptime > identity.Uptime) {
		s.db.Forget()
		s.log.Info("inbox: the database server was restarted or replaced; the caches are dropped", nil)
	}
}

// identity distinguishes the runs of servers by a name or by the uptime.
type identity struct {
	Name   string
	Uptime int64
}

func (s *Store) identify(ctx context.Context) (id identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	if err := s.db.QueryRowContext(ctx, s.dialect.SelectIdentity).Scan(&id.Name, &id.Uptime); err != nil {
		return id, fmt.Errorf("identify the server: %w", err)
	}
	return id, nil
}

// warnUnattended logs once that nothing runs the background work.
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

var errGuardOutside = errors.New("the plugin's guard stands outside a middleware of this handler, which was added while the router ran: " +
	"add middlewares before Router.Run")

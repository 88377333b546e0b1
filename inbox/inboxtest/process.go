package inboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/stored"
)

// Process is one run of the service, from its start until it is closed or dies. When it dies, its
// calls through DB, Subscriber and Publisher end at once, and nothing that was not committed or
// confirmed by then takes effect.
type Process struct {
	DB         *sqlx.DB
	Router     *message.Router
	Subscriber message.Subscriber // of every topic; subscribers of one topic share its messages
	Publisher  message.Publisher  // to the broker
	Logger     watermill.LoggerAdapter

	play   *play
	number int
	wiring wiring

	life context.Context //nolint:containedctx // ends with the process
	kill context.CancelFunc

	stopping atomic.Bool // it gets no more messages
	unwired  bool        // its router was never run
	closing  sync.Once
	gone     chan struct{} // closed when it no longer handles or answers messages
	running  sync.WaitGroup
	onClose  []func(context.Context) error

	mu    sync.Mutex
	conns []*conn
}

// Group returns a subscriber for consumers that get every message of a topic, independently of the
// process's Subscriber and of other groups.
func (p *Process) Group(name string) message.Subscriber { return subscriber{p, name} }

// Go runs background work, such as a relay's Run, until the process ends. An error that run returns
// before that is noted in the timeline.
func (p *Process) Go(run func(ctx context.Context) error) {
	p.running.Go(func() {
		ctx := context.WithValue(p.life, workKey{}, true)
		if err := run(ctx); err != nil && p.life.Err() == nil {
			p.play.note(p, "a background job ended: %v", err)
		}
	})
}

// OnClose registers a hook, such as a store's Close, to be called after the router was closed. It
// stands for what the service's main does after Router.Run.
func (p *Process) OnClose(hook func(ctx context.Context) error) { p.onClose = append(p.onClose, hook) }

// External calls act, a call to something outside. The process can die, and the call can fail,
// before and after it.
func (p *Process) External(ctx context.Context, name string, act func() error) error {
	now, err := p.begin(ctx, call{kind: external, what: "CALL " + name}, callers())
	if err != nil {
		return err
	}
	return now.end(ctx, act())
}

// Callback lets a callback that the service gave to Millrace panic: an observer, a key, a payload
// codec. Call it first in the callback. ctx is the callback's context, or that of its message; only
// callbacks on behalf of a message panic.
func (p *Process) Callback(ctx context.Context, name string) {
	_, _ = p.begin(ctx, call{kind: callback, what: "CALLBACK " + name}, callers())
}

// start starts a process of the play.
func (pl *play) start() (*Process, error) {
	p := &Process{play: pl, gone: make(chan struct{}), Logger: watermill.NopLogger{}}
	p.life, p.kill = context.WithCancel(context.Background())
	p.wiring.process = p
	pl.mu.Lock()
	pl.processes = append(pl.processes, p)
	p.number = len(pl.processes)
	pl.mu.Unlock()

	p.DB = sqlx.NewDb(sql.OpenDB(&connector{Connector: pl.connector, process: p}), pl.driver)
	p.DB.SetMaxOpenConns(8)
	p.DB.SetMaxIdleConns(8)
	p.Subscriber, p.Publisher = subscriber{process: p}, publisher{p}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, p.Logger)
	if err != nil {
		return nil, err
	}
	p.Router = router
	if err := pl.scenario.Service(p); err != nil {
		p.unwired = true
		p.end()
		return nil, fmt.Errorf("the service does not start: %w", err)
	}
	router.AddMiddleware(p.wiring.innermost)
	ended := make(chan error, 1)
	p.running.Go(func() { ended <- router.Run(context.WithoutCancel(p.life)) })
	select {
	case <-router.Running():
		pl.note(p, started)
		return p, nil
	case err := <-ended:
		p.end()
		return nil, fmt.Errorf("the service does not start: %w", errors.Join(err, errors.New("Router.Run returned")))
	}
}

func (p *Process) dead() bool { return p.life.Err() != nil }

// crash ends the process at once. Nothing that its code still does has an effect.
func (p *Process) crash() {
	p.stopping.Store(true)
	p.kill()
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	for _, c := range conns {
		c.sever()
	}
	p.play.note(p, "is dead")
	p.play.broker.abandon(p)
	p.play.ended.Go(p.end)
}

// end closes the process, if it still lives, in the order in which a service closes, and waits
// until it is gone.
func (p *Process) end() {
	p.stopping.Store(true)
	p.closing.Do(func() {
		if !p.unwired { // otherwise it waits for handlers that nobody has started
			if err := p.Router.Close(); err != nil && !p.dead() {
				p.play.note(p, "the router was not closed: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, hook := range p.onClose {
			if err := hook(ctx); err != nil && !p.dead() {
				p.play.note(p, "was not closed: %v", err)
			}
		}
		p.kill()
		close(p.gone)
		p.running.Wait()
		_ = p.DB.Close()
		p.play.broker.abandon(p)
	})
	<-p.gone
}

func (p *Process) opened(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

func (p *Process) closed(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(p.conns, func(other *conn) bool { return other == c })
}

// step is a call that has begun.
type step struct {
	call
	process *Process
	fault   string // the fault that is due at it, or ""
	line    int    // its line in the timeline
}

// begin counts a call and makes a fault happen that is due before it.
func (p *Process) begin(ctx context.Context, c call, stack []frame) (*step, error) {
	if p.dead() {
		return nil, errDead
	}
	c.owner = p.ownerOf(ctx)
	now := &step{call: c, process: p}
	now.fault, now.line = p.play.reach(p, c, userOf(stack))
	switch now.fault {
	case crashBefore:
		if c.kind != answer {
			p.play.broker.hear(p)
		}
		p.crash()
		return nil, errDead
	case loseBefore:
		p.play.result(now.line, errLost)
		if c.sever != nil {
			c.sever()
		}
		return nil, errLost
	case failBefore:
		if c.abort != nil {
			c.abort()
		}
		p.play.result(now.line, errFailed)
		return nil, errFailed
	case interrupt:
		if c.cut != nil {
			c.cut()
		}
		p.play.result(now.line, errCut)
		return nil, errCut
	case panicBefore:
		p.play.result(now.line, errPanic)
		panic(errPanic)
	case copyAt:
		p.play.copyTo(c.owner)
	case closeAt:
		p.play.closeNow(p)
	}
	if c.moves() {
		p.play.begun.Add(1)
	}
	return now, nil
}

// end records the result of the call and makes a fault happen that is due after it.
func (s *step) end(ctx context.Context, err error) error {
	pl := s.process.play
	if s.moves() {
		defer pl.done.Add(1)
	}
	if err != nil { // it failed already
		pl.result(s.line, err)
		return err
	}
	switch s.fault {
	case crashAfter:
		if s.kind != answer {
			pl.broker.hear(s.process)
		}
		s.process.crash()
		return errDead
	case loseAfter:
		err = errLost
	case failAfter:
		err = errFailed
	case panicAfter:
		pl.result(s.line, errPanic)
		panic(errPanic)
	case slowAnswer:
		limit := time.NewTimer(pl.scenario.Slow)
		defer limit.Stop()
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.process.life.Done():
			err = errDead
		case <-limit.C:
			pl.note(s.process, "the caller did not give up within %v", pl.scenario.Slow)
			return nil
		}
	}
	if err != nil && s.sever != nil {
		s.sever()
	}
	pl.result(s.line, err)
	return err
}

// ownerOf returns the name of the delivery for which a call is made.
func (p *Process) ownerOf(ctx context.Context) string {
	if ctx != nil {
		switch source := sourceOf(ctx).(type) {
		case *delivery:
			if source.copied {
				return source.letter.name + asCopy
			}
			return source.letter.name
		case *stored.Message:
			return p.play.broker.stored(source)
		}
	}
	select {
	case <-p.Router.Running():
		return atWork
	default:
		return atStart
	}
}

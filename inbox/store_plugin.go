package inbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/leaving"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/steady"
)

// Plugin returns the plugin that a Watermill router needs to work with the Store.
//
//   - When the router starts, the plugin checks the schema and the settings: an error stops
//     Router.Run, a warning is logged.
//   - While the router runs, the plugin does the work of [Store.Run].
//   - It adds a guard as the innermost middleware. The guard lets the inbox refuse a failure that a
//     middleware in between hides, a second run of the handler in one transaction, and a middleware
//     that returns before the handler does.
//   - It keeps each message as the subscriber delivered it, before a middleware can change it: the
//     inbox hashes and stores that one. Handlers and middlewares work on a copy.
//
// Each router whose handlers use the Store needs the plugin; middleware.Inbox.AddTo adds it.
// Without it, the inbox refuses the router's messages with [ErrNoPlugin], unless
// Config.WithoutPlugin is set. A message that no router delivers, such as one that a test hands to
// the middleware, needs no plugin. A router that gets the plugin twice does everything once. If
// several routers share a Store, the first one does the background work, and another takes over
// when that one is closed. The work ends when all of them, or the Store, are closed.
//
// A Store without Config.Logger logs to the logger of the first router that starts with its plugin, and
// to slog.Default until then.
//
// A handler that is added while the router runs is guarded like the others, but the guard is outside
// of the middlewares that were added since Router.Run. If one of these is the Inbox, the guard sees
// nothing; if one is a Retry inside the Inbox, the guard does not see its runs. Both are logged.
func (s *Store) Plugin() message.RouterPlugin {
	return func(r *message.Router) error {
		router := weak.Make(r) // nothing tells that its Run failed
		if _, again := s.work.routers.LoadOrStore(router, true); again {
			return nil
		}
		s.logTo(r.Logger())
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		s.work.expects.Store(true) // before the check, which looks for a janitor
		if err := s.checkAtStart(ctx); err != nil {
			s.work.routers.Delete(router)
			return err
		}
		var handlers bare
		if _, guards := guarded.LoadOrStore(router, true); !guards { // for all Stores of the router: a second one would see each run twice
			r.AddMiddleware(s.guard(&handlers))
		}
		r.AddSubscriberDecorators(func(sub message.Subscriber) (message.Subscriber, error) {
			handlers.note(r)
			return decorate(sub)
		})
		go s.runWith(router, r.Running())
		return nil
	}
}

var decorate = message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
	attend(msg)
	original.Keep(msg)
})

// logTo makes log the logger of a Store without Config.Logger, unless another router gave it one.
func (s *Store) logTo(log watermill.LoggerAdapter) {
	if s.routersLog == nil || !s.routersLog.Give(log) {
		return
	}
	s.debug.Store(steady.Detailed(log))
}

// checkAtStart leaves out the consumers: each one is checked when the program declares it.
func (s *Store) checkAtStart(ctx context.Context) error {
	findings, err := s.check(ctx)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Severity == Error {
			return fmt.Errorf("inbox: %s", f)
		}
		s.log.Info("inbox: a setting of the database should be changed", watermill.LogFields{"reason": f.String()})
	}
	return nil
}

// routerLook is how often the plugin looks at its router, which announces that it runs, but neither that
// its Run has failed nor that it has stopped.
const routerLook = 200 * time.Millisecond

// runWith does the background work while a router runs, unless another router's plugin does it.
func (s *Store) runWith(router weak.Pointer[message.Router], running <-chan struct{}) {
	defer s.work.routers.Delete(router)
	defer guarded.Delete(router)
	r := s.started(router, running)
	if r == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		tick := time.NewTicker(routerLook)
		defer tick.Stop()
		for !r.IsClosed() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	if !s.work.takeTurn(ctx) {
		return
	}
	defer s.work.endTurn()
	if err := s.Run(ctx); err != nil && !errors.Is(err, ErrClosed) {
		s.log.Error("inbox: the background work ended", err, nil)
	}
}

// started waits until a router runs and returns it. It returns nil if the router is closed or, as
// its Run failed, freed before, or if the Store is closed.
func (s *Store) started(router weak.Pointer[message.Router], running <-chan struct{}) *message.Router {
	tick := time.NewTicker(routerLook)
	defer tick.Stop()
	for {
		select {
		case <-running:
			return router.Value()
		case <-s.work.closed:
			return nil
		case <-tick.C:
			if r := router.Value(); r == nil || r.IsClosed() && !r.IsRunning() {
				return nil
			}
		}
	}
}

// guarded are weak pointers to the routers that have a guard.
var guarded sync.Map

// carried reports whether tx came with a context that was given to a publisher: it is that of
// another delivery.
func carried(tx *ambient.Tx, msg *message.Message) bool {
	cl, is := tx.Owner.(*claim)
	return is && cl.ctx.Value(attended{}) != msg.Context().Value(attended{})
}

// bare are the functions that handlers were added with, by their code. A router calls a middleware of one with something else
// if another middleware stands further in.
type bare struct{ codes sync.Map }

// note adds the handlers of r. The router must be starting some, which it does under the lock of its handlers.
func (b *bare) note(r *message.Router) {
	for _, h := range r.Handlers() {
		b.codes.Store(code(h), true)
	}
}

func (b *bare) has(h message.HandlerFunc) bool {
	_, has := b.codes.Load(code(h))
	return has
}

func code(h message.HandlerFunc) uintptr { return reflect.ValueOf(h).Pointer() }

// guard returns the innermost middleware. It tells the inbox how the handler ended, or that it has not.
func (s *Store) guard(handlers *bare) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc { return s.guarding(next, handlers.has(next)) }
}

// guarding is the guard around next, which is innermost if nothing else is around the handler.
func (s *Store) guarding(next message.HandlerFunc, innermost bool) message.HandlerFunc {
	alone := leaving.Nack(next) // without an inbox around it; an inbox nacks by itself, once its transaction has ended
	return func(msg *message.Message) ([]*message.Message, error) {
		tx := ambient.From(msg.Context())
		if tx == nil || carried(tx, msg) {
			msg.SetContext(context.WithValue(msg.Context(), guardPassed{}, true))
			if l := leaseOf(msg); l != nil {
				return l.watch(msg, alone)
			}
			return alone(msg)
		}
		if cl, is := tx.Owner.(*claim); is && !innermost {
			cl.consumer.sayUnguarded(cl.delivery, errGuardOutside)
		}
		again := tx.Enter() > 0
		defer tx.Leave()
		if again {
			if tx.Failure() == nil {
				tx.Failed(errRanAgain)
			}
			return nil, fmt.Errorf("%w: %w", ErrSwallowed, tx.Failure())
		}
		if !tx.Open() {
			s.log.Error("inbox: the handler began when its transaction had ended", errReturnedBefore,
				watermill.LogFields{"message_uuid": msg.UUID})
		}
		returned := false
		defer func() {
			if !returned { // a Recoverer outside may turn the panic into an error
				tx.Failed(errPanic)
			}
		}()
		produced, err := next(msg)
		returned = true
		if err != nil {
			tx.Failed(err)
		}
		return produced, err
	}
}

package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// Wired is a policy that was added to a router. It is safe for concurrent use.
type Wired struct {
	policy Policy
	wiring Wiring
	router *message.Router

	mu         sync.Mutex
	subscribed map[string]bool          // handlers that have asked for a subscriber
	batched    map[string]bool          // handlers that AddBatchHandler has added
	watches    map[string]*shadow.Watch // of handlers for which nothing is enforced
}

// Wire adds p to router: a middleware, which applies to each handler the rules of that handler, and
// a plugin. Add the middleware Retry before calling Wire, and CorrelationID, Timeout and Recoverer
// after. The plugin makes Router.Run fail if policy and router do not match, and does what
// [inbox.Store.Plugin] does for the stores of w: add neither that plugin nor other middlewares of
// Millrace.
//
// Wire returns everything that is wrong with p and w at once.
func (p Policy) Wire(router *message.Router, w Wiring) (*Wired, error) {
	switch {
	case router == nil:
		return nil, errors.New("policy: Wire needs a router")
	case router.IsRunning():
		return nil, errors.New("policy: the router runs already: wire it before Run")
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	p.Consumers = maps.Clone(p.Consumers)
	wired := &Wired{
		policy: p, wiring: w, router: router, subscribed: make(map[string]bool), batched: make(map[string]bool), watches: make(map[string]*shadow.Watch),
	}
	if err := wired.check().sorted(); err != nil {
		return nil, err
	}
	router.AddMiddleware(wired.middleware)
	router.AddPlugin(wired.plugin)
	return wired, nil
}

// check returns what the rules need and the wiring does not have.
func (w *Wired) check() (all Problems) {
	all = w.wiring.empty()
	if w.wiring.Inbox.Before != nil {
		all = append(all, Problem{Text: "Wiring.Inbox.Before would run for every handler: list the handlers that need it in Wiring.Before"})
	}
	if len(all) > 0 {
		return all
	}
	for _, handler := range slices.Sorted(maps.Keys(w.wiring.Before)) {
		all = append(all, w.problems(handler, w.preparable(handler))...)
	}
	for handler := range w.policy.Consumers {
		rules, _ := w.policy.For(handler)
		_, err := w.around(handler, rules)
		all = append(all, w.problems(handler, err)...)
	}
	if !w.policy.Strict {
		_, err := w.around("", Rules{}.or(w.policy.Defaults))
		all = append(all, w.problems("", err)...)
	}
	return all
}

// preparable returns an error if Wiring.Before cannot serve handler.
func (w *Wired) preparable(handler string) error {
	r, named := w.policy.For(handler)
	switch {
	case !named:
		return nil // a handler without rules is refused elsewhere
	case r.Shadow:
		return lack{"shadow", fmt.Sprintf("a consumer in the shadow runs nothing before its handler, so Wiring.Before[%q] would not be done: "+
			"take one of the two out", handler)}
	case slices.Contains(preparing, r.Strategy):
		return nil
	case r.Strategy.means("version"):
		return lack{"strategy", fmt.Sprintf("%s decides in the transaction whether a message is handled, and Wiring.Before[%q] would run for those "+
			"that are not: take it out, and have another consumer do what the handler publishes through the outbox", r.Strategy, handler)}
	}
	return lack{"strategy", fmt.Sprintf("%s has no transaction for Wiring.Before[%q] to come before: take it out, and do the same in the handler",
		r.Strategy, handler)}
}

// middleware applies to a handler its rules. A router calls it once for each handler, but only the
// first message with a name tells which handler that is: a stored one may have none. One that comes before is refused.
func (w *Wired) middleware(next message.HandlerFunc) message.HandlerFunc {
	var once sync.Once
	var known atomic.Bool
	var guarded message.HandlerFunc
	nameless := w.bind("", next)
	return func(msg *message.Message) ([]*message.Message, error) {
		if handler := message.HandlerNameFromCtx(msg.Context()); handler != "" {
			once.Do(func() {
				guarded = w.bind(handler, next)
				known.Store(true)
			})
		} else if !known.Load() {
			return nameless(msg)
		}
		return guarded(msg)
	}
}

// bind returns next behind the rules of handler. If they cannot be enforced, every message fails:
// none is handled without its rules.
func (w *Wired) bind(handler string, next message.HandlerFunc) message.HandlerFunc {
	err := w.missing(handler).sorted()
	if err == nil {
		rules, _ := w.policy.For(handler)
		var guard message.HandlerMiddleware
		if guard, err = w.around(handler, rules); err == nil {
			return guard(next)
		}
	}
	return inbox.Internals{}.Refuse(fmt.Errorf("policy: %w", err))
}

// missing returns what keeps the rules of handler from being enforced, except the wiring.
func (w *Wired) missing(handler string) Problems {
	if handler == "" {
		return Problems{{Text: "a handler has no name, and rules are by name: give it one, and have a Watermill router run it"}}
	}
	rules, ok := w.policy.For(handler)
	if !ok {
		return w.problems(handler, lack{"strict", fmt.Sprintf("handler %q is not named: name it in consumers, or take strict out", handler)})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if why, is := rules.queued(); is && !w.subscribed[handler] {
		return w.problems(handler, fmt.Errorf(
			"handler %q needs a queue (%s): give the router the subscriber that wired.Subscriber(%[1]q, subscriber) returns", handler, why))
	}
	if field := w.unbatched(handler); field != "" {
		return w.problems(handler, lack{field, fmt.Sprintf(
			"handler %q gets one message at a time: add it with wired.AddBatchHandler, or leave batch out", handler)})
	}
	return nil
}

// startWait is how long a starting router may wait for the database.
const startWait = 30 * time.Second

// plugin compares the policy with the router and starts the stores.
func (w *Wired) plugin(r *message.Router) error {
	handlers := slices.Sorted(maps.Keys(r.Handlers()))
	if err := w.compare(handlers).sorted(); err != nil {
		return err
	}
	if err := w.verify(handlers); err != nil {
		return err
	}
	for _, store := range w.stores() {
		if err := store.Plugin()(r); err != nil {
			return err
		}
	}
	return nil
}

// verify returns the consumers that would fail every message because their key changed.
func (w *Wired) verify(handlers []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	var problems []error
	for _, handler := range handlers {
		rules, _ := w.policy.For(handler)
		if rules.Shadow || !rules.Strategy.means("timeout") {
			continue
		}
		i, err := w.inbox(handler, rules)
		if err == nil {
			err = i.Verify(ctx, handler)
		}
		if err == nil {
			continue
		}
		at := w.at(handler)
		err = fmt.Errorf("%s%w", at.Error(), err)
		if !errors.Is(err, inbox.ErrKeyChanged) { // the database's fault: the other consumers would say the same
			return err
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// stores returns each store once.
func (w *Wired) stores() []*inbox.Store {
	var all []*inbox.Store
	if w.wiring.Store != nil {
		all = append(all, w.wiring.Store)
	}
	for _, name := range slices.Sorted(maps.Keys(w.wiring.Stores)) {
		if store := w.wiring.Stores[name]; !slices.Contains(all, store) {
			all = append(all, store)
		}
	}
	return all
}

// problems places err in the policy: at the rules of a handler, or at those that apply to all
// handlers without any.
func (w *Wired) problems(handler string, err error) (all Problems) {
	if err == nil {
		return nil
	}
	if many, is := err.(interface{ Unwrap() []error }); is { //nolint:errorlint // those that were joined here
		for _, one := range many.Unwrap() {
			all = append(all, w.problems(handler, one)...)
		}
		return all
	}
	p := w.at(handler)
	p.Text = err.Error()
	if l := (lack{}); errors.As(err, &l) {
		p.Text = l.text
		rules := w.policy.Consumers[handler]
		own, defaults := fieldValues(&rules), fieldValues(&w.policy.Defaults)
		switch {
		case l.field == "strict":
			p.Path = l.field
		case !own[l.field].IsZero():
			p.Path += "." + l.field
		case !defaults[l.field].IsZero():
			p.Path = "defaults." + l.field
		}
		p.File, p.Line = w.policy.from.at(p.Path)
	}
	return Problems{p}
}

// at returns where the rules of a handler are written.
func (w *Wired) at(handler string) Problem {
	path := "defaults"
	if _, named := w.policy.Consumers[handler]; named {
		path = below("consumers", handler)
	}
	file, line := w.policy.from.at(path)
	return Problem{File: file, Line: line, Path: path}
}

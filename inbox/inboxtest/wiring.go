package inboxtest

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/stored"
)

// finding is a mistake in a service's wiring, found in its calls.
type finding struct {
	what  string
	place string // the user's line to blame
	cure  string

	around bool // the mistake is around the handler: plays that see it at another line see the same one
}

// same reports whether two findings are of one mistake.
func (f finding) same(other finding) bool {
	if f.around {
		f.place = other.place
	}
	return f == other
}

func (f finding) String() string {
	return f.place + ": " + f.what + "\n    " + f.cure
}

// wiring watches how a process uses the transactions of the inbox.
type wiring struct {
	process *Process

	mu      sync.Mutex
	claims  map[*conn]*claimed // connections whose transaction has claimed a message
	running map[*run]struct{}
}

// run is a handler that runs.
type run struct {
	source any              // its delivery, see sourceOf
	msg    *message.Message // as it came to innermost
	own    *claimed         // nil if it has no transaction of the inbox
}

// claimed is the inbox's transaction on a connection.
type claimed struct {
	source  any    // the delivery that began it, see sourceOf
	runs    int    // of the handler
	failed  error  // what the handler returned
	place   string // the last line at which the handler used the transaction
	between string // the middleware next to the handler, if it is not Millrace's
}

// handlerFrame is in the stack of every call that the handler's goroutine makes.
const handlerFrame = module + "inbox/inboxtest.(*wiring).innermost"

// batchFrame is in the stack of every call that the function of a middleware.Batch makes.
const batchFrame = module + "inbox.(*batchRun).call"

// statement checks a statement before it is sent to the database.
func (w *wiring) statement(c *conn, ctx context.Context, query string, said *text, stack []frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.claims[c]
	byMillrace := isMillraces(stack)
	if byMillrace && w.process.play.store == nil {
		w.found(finding{
			what: "Millrace's tables are not where Prepare should have made them", place: w.blame(""), around: true,
			cure: "The kit does not see what is stored in them: call Migrate in Prepare, and set Scenario.TablePrefix as in inbox.Config; a Config.Schema must be the search_path of the DSN.",
		})
	}
	millraces := byMillrace || said.of(w.process.play.tables)
	switch {
	case query == "COMMIT" && own != nil:
		if own.failed != nil {
			w.found(finding{
				what: fmt.Sprintf("the handler failed (%v), and its transaction is committed", own.failed), place: w.blame(own.place), around: true,
				cure: "A middleware between Inbox and the handler" + own.between + " hides the error: put PoisonQueue, IgnoreErrors and the like outside of Inbox.",
			})
		}
		delete(w.claims, c)
	case query == "ROLLBACK":
		delete(w.claims, c)
	case c.tx != nil && own == nil && byMillrace && said.writes && strings.Contains(query, w.process.play.scenario.TablePrefix+"claims"):
		if w.claims == nil {
			w.claims = map[*conn]*claimed{}
		}
		w.claims[c] = &claimed{source: sourceOf(c.tx)} //nolint:contextcheck // the transaction's
	case millraces || userOf(stack) == "":
	case own != nil:
		own.place = userOf(stack)
		if !passes(stack, handlerFrame, module+"middleware.") { // hooks of the inbox may use it too
			w.found(finding{
				what: "the transaction is used outside of the handler's own goroutine: " + said.shown, place: userOf(stack),
				cure: "The handler may have returned by then, and its transaction have ended: do the work in the handler itself.",
			})
		}
	case said.writes && w.inHandler(stack, ctx) && !said.of(w.process.play.scenario.Outside):
		w.found(finding{
			what: "written outside of the inbox's transaction: " + said.shown, place: userOf(stack),
			cure: "The write is repeated whenever the handler runs again: use inbox.Tx(msg.Context()) instead of the pool, or name the table in Scenario.Outside.",
		})
	}
}

// inHandler reports whether a call is made on behalf of a running handler that has a transaction.
func (w *wiring) inHandler(stack []frame, ctx context.Context) bool {
	if passes(stack, batchFrame) {
		return true
	}
	if source := sourceOf(ctx); source != nil {
		return (passes(stack, handlerFrame) || ctx.Value(workKey{}) == nil) && w.runs(source)
	}
	return passes(stack, handlerFrame) && len(w.running) > 0 && w.allOwn()
}

// runs reports whether a handler with a transaction runs for a delivery.
func (w *wiring) runs(source any) bool {
	for r := range w.running {
		if r.source == source && r.own != nil {
			return true
		}
	}
	return false
}

// allOwn reports whether all handlers that run have a transaction. If not, it is not known whether a call without a
// delivery is made in one.
func (w *wiring) allOwn() bool {
	for r := range w.running {
		if r.own == nil {
			return false
		}
	}
	return true
}

// published checks messages before they are sent to the broker.
func (w *wiring) published(topic string, messages []*message.Message, stack []frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !passes(stack, handlerFrame, module+"middleware.") || passes(stack, module+"outbox.") ||
		!passes(stack, batchFrame) && !w.claimedFor(messages) {
		return
	}
	w.found(finding{
		what: "published to " + topic + " before the commit", place: w.blame(userOf(stack)),
		cure: "The message goes out even if the transaction is rolled back: publish through outbox.Publisher, or return the message from the handler.",
	})
}

// claimedFor reports whether messages are published by who has claimed a message, and not yet committed.
func (w *wiring) claimedFor(messages []*message.Message) bool {
	var from any
	for _, msg := range messages {
		if source := sourceOf(msg.Context()); source != nil {
			from = source
		}
	}
	for _, cl := range w.claims {
		if from == nil && w.allOwn() || from != nil && cl.source == from {
			return true
		}
	}
	return false
}

// innermost is the innermost middleware, directly around each handler.
func (w *wiring) innermost(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context() // the handler may replace it
		now, err := w.process.begin(ctx, call{kind: handling, what: "HANDLER"}, nil)
		if err != nil {
			return nil, err
		}
		r := w.enter(sourceOf(ctx), msg, callers())
		defer w.over(r)
		produced, err := next(msg)
		w.leave(r, err)
		return produced, now.end(ctx, err)
	}
}

func (w *wiring) enter(source any, msg *message.Message, stack []frame) *run {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &run{source: source, msg: msg}
	if w.running == nil {
		w.running = map[*run]struct{}{}
	}
	w.running[r] = struct{}{}
	for _, cl := range w.claims {
		if cl.source != nil && cl.source == source {
			r.own = cl
			cl.runs++
			cl.failed, cl.between = nil, nextTo(stack)
			if cl.runs > 1 {
				w.found(finding{
					what: "the handler runs again in the transaction in which it failed", place: w.blame(cl.place), around: true,
					cure: "A middleware between Inbox and the handler" + cl.between + " repeats it: add Retry and the like to the router before Inbox.",
				})
			}
			break
		}
	}
	return r
}

// over ends a run, also of a handler that panics.
func (w *wiring) over(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, r)
}

func (w *wiring) leave(r *run, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := r.own
	if own == nil {
		return
	}
	own.failed = err
	name, given := "", r.msg // a queue's, unless a middleware has made a copy
	switch source := own.source.(type) {
	case *delivery:
		name, given = source.letter.name, source.msg
	case *stored.Message:
		name = w.process.play.broker.stored(source)
	}
	select {
	case <-given.Acked():
		w.found(finding{
			what: name + " is acked while its handler runs", place: w.blame(own.place), around: true,
			cure: "A crash now loses the message: remove InstantAck, and do not call msg.Ack in a handler.",
		})
	default:
	}
}

// blame returns a line of the user's, or where Scenario.Service begins if there is none: it wires what goes wrong.
func (w *wiring) blame(line string) string {
	if line != "" {
		return line
	}
	service := runtime.FuncForPC(reflect.ValueOf(w.process.play.scenario.Service).Pointer())
	file, at := service.FileLine(service.Entry())
	return frame{service.Name(), file, at}.place()
}

// inner is what the compiler adds to the name of a function for those in it, and for a method that is a value.
var inner = regexp.MustCompile(`-fm.*$|(\.func\d+(\.\d+)*)+$`)

// nextTo names the middleware that calls the handler, from the stack outside of innermost.
func nextTo(stack []frame) string {
	if len(stack) == 0 || begins(stack[0].function, millrace) {
		return ""
	}
	name := inner.ReplaceAllString(stack[0].function[strings.LastIndexByte(stack[0].function, '/')+1:], "")
	if !begins(stack[0].function, libraries) {
		name += " at " + stack[0].place()
	}
	return ", which is " + name + ","
}

// found records a finding, once.
func (w *wiring) found(f finding) {
	pl := w.process.play
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if !slices.ContainsFunc(pl.findings, f.same) {
		pl.findings = append(pl.findings, f)
	}
}

package pubsub

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
)

// A suspect is a message that may end the process. It is delivered while the handler has no other stored one, for which
// everything else waits. A handler that does not return must not make that wait last for ever.

// alone delivers a suspect. If the handler does not answer the others in time, it puts the suspect back for a while.
func (w *worker) alone(ctx context.Context, hands int) {
	l := w.ready[0]
	impatient := time.NewTimer(w.patience)
	defer impatient.Stop()
	for hands < cap(w.hands) && !w.stuck() {
		select {
		case w.hands <- struct{}{}:
			hands++
		case <-impatient.C:
			w.gaveUp(slices.DeleteFunc(w.noted(), func(other *inbox.Leased) bool { return other == l }))
			w.patience *= 2 // these may merely take long, and so may those that come next
		case <-ctx.Done():
			w.giveBack(hands)
			return
		}
	}
	if w.queue.Paused() { // meanwhile
		w.giveBack(hands)
		return
	}
	w.ready = w.ready[1:]
	if hands < cap(w.hands) {
		w.giveBack(hands)
		w.answers.Go(func() { w.queue.Call(func() { w.failed(ctx, l, l.PutBack) }) }) // its row may be locked
		return
	}
	w.giveBack(hands - 1)
	impatient.Reset(w.patience)
	select {
	case <-w.deliver(ctx, l):
	case <-impatient.C:
		w.gaveUp([]*inbox.Leased{l})
	case <-ctx.Done():
	}
}

// stuck reports whether the handler still has a message for which a suspect waited in vain.
func (w *worker) stuck() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.slow, func(l *inbox.Leased) bool {
		_, has := w.leased[l]
		return has
	})
}

var errNoAnswer = errors.New("the handler has not answered")

// gaveUp notes, and logs, for which messages nothing waits any more.
func (w *worker) gaveUp(slow []*inbox.Leased) {
	w.slow = slow
	w.log().Error("pubsub: a handler has had a stored message for too long; messages to be delivered alone wait for it, and the others go on",
		errNoAnswer, watermill.LogFields{"waited": w.patience.String()})
}

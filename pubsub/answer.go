package pubsub

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
)

// answerFor bounds the statements that follow an answer.
const answerFor = 10 * time.Second

// lastAnswers is how long a subscription that ends waits for the handlers: Watermill's
// router goes on waiting for them, but not for what is then written down.
const lastAnswers = 500 * time.Millisecond

// finish closes messages that were acked, together with those that are acked meanwhile, also
// while the service closes.
func (w *worker) finish(ctx context.Context) {
	defer close(w.recorded)
	for l := range w.acked {
		batch := gather(l, w.acked)
		apart(w.queue, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
			defer cancel()
			w.tell(w.queue.Finish(ctx, batch...))
		})
		w.note(batch, false)
		w.wake()
	}
}

// failed writes down that a message was not handled, also while the service closes.
func (w *worker) failed(ctx context.Context, l *inbox.Leased, end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
	defer cancel()
	defer w.queue.Wake()                    // it may be due before the table is looked at anyway
	defer w.note([]*inbox.Leased{l}, false) // also where a function of the service's ends the goroutine: no lease is renewed
	w.tell(end(ctx))
}

// putBack lets others have at once what was taken and not handed out.
func (w *worker) putBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
	defer cancel()
	defer w.note(w.ready, false)
	w.tell(w.queue.PutBack(ctx, w.ready...))
}

// tell says what could not be written down.
func (w *worker) tell(err error) {
	switch {
	case errors.Is(err, inbox.ErrLost):
		w.log().Info("pubsub: stored messages were taken over by someone else before they were answered",
			watermill.LogFields{"error": err.Error()})
	case err != nil:
		w.log().Error("pubsub: the answer to stored messages could not be recorded; they come again after their lease", err, nil)
	}
}

// wake says that the next message of an order key may be due.
func (w *worker) wake() {
	if w.OrderKey != nil {
		w.queue.Wake()
	}
}

// mostAtOnce bounds how many messages are written down in one transaction.
const mostAtOnce = 100

// gather adds to first what else has arrived.
func gather[T any](first T, arrived <-chan T) []T {
	batch := []T{first}
	for len(batch) < mostAtOnce {
		select {
		case next, open := <-arrived:
			if !open {
				return batch
			}
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// waitForAnswers waits until every answer was written down, but not long.
func (w *worker) waitForAnswers() {
	timer := time.NewTimer(lastAnswers)
	defer timer.Stop()
	select {
	case <-w.recorded:
	case <-timer.C:
	}
}

package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
)

// answerFor bounds the statements that follow an answer.
const answerFor = 10 * time.Second

// lastAnswers is how long a subscription that ends waits for answers to be recorded: Watermill's
// router waits for the handlers, but not for that.
const lastAnswers = 500 * time.Millisecond

// finish closes acked messages in batches of those that were acked meanwhile, also while the
// service closes. A batch that takes too long, because somebody keeps a row locked for instance, does
// not hold up the next ones.
func (w *worker) finish(ctx context.Context) {
	defer close(w.recorded)
	var batches sync.WaitGroup
	defer batches.Wait()
	for l := range w.acked {
		batch, recorded := gather(l, w.acked), make(chan struct{})
		batches.Go(func() {
			defer close(recorded)
			apart(w.queue, func() {
				w.record(ctx, func(ctx context.Context) error { return w.queue.Finish(ctx, batch...) })
			})
			w.note(batch, false)
			w.wake()
		})
		waitFor(recorded, answerFor)
	}
}

// failed records that a message was not handled, also while the service closes.
func (w *worker) failed(ctx context.Context, l *inbox.Leased, end func(context.Context) error) {
	defer w.queue.Wake()                    // the message may be due before the next regular look
	defer w.note([]*inbox.Leased{l}, false) // also if a function of the service ends the goroutine: its lease must end
	w.record(ctx, end)
}

// putBack gives messages that were taken and not handed out to others at once.
func (w *worker) putBack(ctx context.Context) {
	defer w.note(w.ready, false)
	w.record(ctx, func(ctx context.Context) error { return w.queue.PutBack(ctx, w.ready...) })
}

// record has an answer written. While the database is away or busy, it tries again until the answer is written or the
// subscription ends: a message whose lease lapses is charged an attempt. Leases are renewed meanwhile.
func (w *worker) record(ctx context.Context, write func(context.Context) error) {
	for tries := 1; ; tries++ {
		err := within(ctx, write)
		if err == nil || ctx.Err() != nil || !passing(err) && (errors.Is(err, inbox.ErrLost) || tries == mostRefusals) {
			w.tell(err)
			return
		}
		if tries == 1 {
			w.log().Error("pubsub: the answer to stored messages could not be recorded; retrying", err, nil)
		}
		w.rest(ctx, nil, min(w.Poll, afterError))
	}
}

// mostRefusals is how often an answer is written at most that the database does not take.
const mostRefusals = 10

// passing reports whether err ends by itself: the database is away, or others keep it busy.
func passing(err error) bool { return away(err) || dialect.Classify(err) == dialect.Contention }

// away reports whether err says that the database is away, gives no answer, or fails over: a standby takes no writes
// until it is promoted.
func away(err error) bool {
	return errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, inbox.ErrReadOnly) || errors.Is(err, context.DeadlineExceeded)
}

// within calls write with a context that lasts for answerFor, whether ctx has ended or not.
func within(ctx context.Context, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerFor)
	defer cancel()
	err := write(ctx)
	if err != nil && ctx.Err() != nil { // some drivers return what the server says about a statement that was cancelled
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// tell logs an answer that could not be recorded.
func (w *worker) tell(err error) {
	switch {
	case errors.Is(err, inbox.ErrLost):
		w.log().Info("pubsub: another process took stored messages over before they were answered",
			watermill.LogFields{"error": err.Error()})
	case err != nil:
		w.log().Error("pubsub: the answer to stored messages could not be recorded; they are redelivered after their lease", err, nil)
	}
}

// wake has the queue look for the next message of an order key, which may be due now.
func (w *worker) wake() {
	if w.OrderKey != nil {
		w.queue.Wake()
	}
}

// mostAtOnce bounds how many messages one transaction writes.
const mostAtOnce = 100

// gather returns first and what else has arrived.
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

// waitFor waits until done is closed, for a time at most.
func waitFor(done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

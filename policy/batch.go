package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	millrace "github.com/millrace-go/millrace/middleware"
)

// AddBatchHandler adds a handler of batches to the router: a middleware.Batch with the settings that the
// rules of handler choose, and the subscriber that [Wired.Subscriber] returns for it. h may publish through
// the outbox. The policy puts no middleware around it.
//
// [Router.Run] fails if the rules of a handler set Batch and this method did not add it. AddBatchHandler
// refuses rules without the inbox's transaction, rules that set Shadow, and a Wiring with Inbox.OnBegin.
func (w *Wired) AddBatchHandler(
	handler, topic string, sub message.Subscriber, h func(ctx context.Context, msgs []*message.Message) error,
) (*message.Handler, error) {
	batch, err := w.batch(handler)
	if err == nil {
		sub, err = w.Subscriber(handler, sub)
	}
	if err != nil {
		return nil, err
	}
	added := w.router.AddConsumerHandler(handler, topic, sub, batch.ConsumerHandler(h)) // panics if there is another
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batched[handler] = true
	return added, nil
}

func (w *Wired) batch(handler string) (b millrace.Batch, err error) {
	r, ok := w.policy.For(handler)
	if !ok {
		return b, w.missing(handler)
	}
	switch {
	case !r.Strategy.means("batch"):
		return b, w.problems(handler, lack{"strategy", fmt.Sprintf("%s has no transaction for a batch: take strategy inbox", r.Strategy)})
	case r.Shadow:
		return b, w.problems(handler, lack{"shadow", "a batch needs the inbox's transaction, which shadow mode does not begin: leave shadow out"})
	case w.wiring.Inbox.OnBegin != nil:
		return b, w.problems(handler, errors.New("Wiring.Inbox.OnBegin is for handlers of one message: add this handler to a router of its own, "+
			"with a Wiring without OnBegin, and set up the transaction in the function"))
	}
	var problems [2]error
	b.Inbox, problems[0] = w.inbox(handler, r)
	if r.Strategy.means("version") {
		g, err := w.gate(r)
		b.Gate, problems[1] = &g, err
	}
	b.Max, b.MaxBytes, b.Linger = r.Batch.Max, r.Batch.MaxBytes, time.Duration(r.Batch.Linger)
	if err = errors.Join(problems[:]...); err == nil {
		err = b.Validate()
	}
	if err != nil {
		return b, w.problems(handler, err)
	}
	return b, nil
}

func (w *Wired) isBatched(handler string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.batched[handler]
}

// unbatched returns a field of Batch that the rules of handler set in vain, if there is one. The caller holds mu.
func (w *Wired) unbatched(handler string) (field string) {
	rules := w.policy.Consumers[handler]
	if w.batched[handler] {
		return ""
	}
	for name, value := range rules.fields() {
		switch name {
		case "batch.max", "batch.max_bytes", "batch.linger":
			if !value.IsZero() {
				return name
			}
		}
	}
	return ""
}

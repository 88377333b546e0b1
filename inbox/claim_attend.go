package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/outage"
)

// attended is the key under which the context of a message has the message as a router with the
// plugin, and so with the guard, got it.
type attended struct{}

// attend marks a message of a router that has the plugin. Messages of handlers added later are
// marked too; those of another router are not, even if its handlers have the same names.
func attend(msg *message.Message) {
	msg.SetContext(context.WithValue(msg.Context(), attended{}, msg))
}

// unattended counts the messages refused because their router has no plugin.
type unattended struct {
	said sync.Once
	seen atomic.Int32
}

// admit refuses the message of a router that has no plugin: nothing in that router would detect a
// Retry inside the inbox, which runs the handler twice in one transaction.
func (s *Store) admit(d *delivery) error {
	if s.config.WithoutPlugin || !d.routed() || d.ctx.Value(attended{}) != nil {
		return nil
	}
	s.unattended.said.Do(func() {
		d.log().Error("inbox: the router of this consumer has no plugin, so its messages are refused; said once", ErrNoPlugin, nil)
	})
	s.pace(d.ctx)
	return ErrNoPlugin
}

// routed reports whether a router delivers d. A stored message has no handler name if its queue
// decorates all subscribers of the router.
func (d *delivery) routed() bool {
	return message.HandlerNameFromCtx(d.ctx) != "" || d.lease != nil && d.lease.queue.routed.Load()
}

// meet notes a router around the queue, if msg came through one.
func (q *Queue) meet(msg *message.Message) {
	// If msg is attended already, it passed a plugin inside the queue, which stored messages do not pass.
	if ctx := msg.Context(); message.HandlerNameFromCtx(ctx) != "" && ctx.Value(attended{}) == nil {
		q.routed.Store(true)
	}
}

// pace delays the nack of a refused message, which its source may redeliver at once. The delay
// grows with each refusal.
func (s *Store) pace(ctx context.Context) {
	const doublings = 5
	pause := min(outage.First<<min(s.unattended.seen.Add(1)-1, doublings), outage.Longest)
	timer := time.NewTimer(pause/2 + rand.N(pause/2+1)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.work.closed:
	}
}

// guardPassed is the key under which the context of a message says that it passed the guard before any inbox.
type guardPassed struct{}

// warnUnguarded logs once that the guard is outside this consumer's inbox.
func (c *claimConsumer) warnUnguarded(d *delivery) {
	if c.batches != nil { // nothing is inside a batch
		return
	}
	if d.ctx.Value(guardPassed{}) == nil {
		return
	}
	c.sayUnguarded(d, errUnguarded)
}

func (c *claimConsumer) sayUnguarded(d *delivery, why error) {
	c.warnedUnguarded.Do(func() {
		d.log().Error("inbox: a Retry inside the inbox would not be noticed; said once per consumer", why, nil)
	})
}

var errNoOutbox = errors.New("its messages are sent before the commit, and stay sent if that fails: set Outbox to an " +
	"outbox.Publisher, or leave it out and give AddHandler the publisher")

// warnNoOutbox warns, once per consumer, of an Outbox that knows no transaction.
func (cl *claim) warnNoOutbox() {
	cl.consumer.warnedNoOutbox.Do(func() {
		cl.log().Error("inbox: Inbox.Outbox published without the transaction; said once per consumer", errNoOutbox, nil)
	})
}

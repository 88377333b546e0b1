package inbox

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/outage"
)

// attended is where the context of a message says that its router has a plugin, and so a guard.
type attended struct{}

// attend marks a message of a router that has the plugin. A handler that is added later has the
// mark as well, and one of another router has not, even if it has the same name.
func attend(msg *message.Message) {
	msg.SetContext(context.WithValue(msg.Context(), attended{}, true))
}

// unattended counts what was refused because a router has no plugin.
type unattended struct {
	said sync.Once
	seen atomic.Int32
}

// admit refuses the message of a router that has no plugin: nobody would notice there that a
// Retry inside the inbox runs the handler twice in one transaction.
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

// routed reports whether a router delivers d. The handler's name is not with a stored message
// whose queue decorates all subscribers of the router.
func (d *delivery) routed() bool {
	return message.HandlerNameFromCtx(d.ctx) != "" || d.lease != nil && d.lease.queue.routed.Load()
}

// meet notes whether a router is around the queue.
func (q *Queue) meet(msg *message.Message) {
	// One that is attended already came through a plugin inside the queue, which a stored one does not pass.
	if ctx := msg.Context(); message.HandlerNameFromCtx(ctx) != "" && ctx.Value(attended{}) == nil {
		q.routed.Store(true)
	}
}

// pace keeps a source from delivering again and again what is refused. The pause grows.
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

// guardPassed is where the context of a message says that the guard was passed before any inbox.
type guardPassed struct{}

// warnUnguarded says once that the guard stands outside this consumer's inbox.
func (c *Consumer) warnUnguarded(d *delivery) {
	if d.ctx.Value(guardPassed{}) == nil {
		return
	}
	c.warnedUnguarded.Do(func() {
		d.log().Error("inbox: a Retry inside the inbox would not be noticed; said once per consumer", errUnguarded, nil)
	})
}

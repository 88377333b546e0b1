package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/requests"
	"github.com/millrace-go/millrace/internal/turns"
)

// Lease is what became of the wish to handle a delivery without a transaction: either the
// right to, for a time, or the answer that the message was handled.
type Lease struct {
	consumer *LeaseConsumer
	msg      *message.Message
	ctx      context.Context //nolint:containedctx // the message's own, as it was on entry
	key      string          // as the user sees it
	id       LeaseKey
	token    int64 // tells this attempt from any other

	fresh   bool
	turn    turns.Turn
	handler context.Context //nolint:containedctx // given to the handler
	cancel  context.CancelCauseFunc
	began   time.Time
	sure    time.Time // nobody else can have taken the lease before; guarded by heart.mu

	gone     bool          // it holds nothing any more
	over     atomic.Bool   // the handler has returned
	requests requests.Made // with a key of the message
}

// leaseContext is a handler's context, in which its lease is found.
type leaseContext struct {
	context.Context //nolint:containedctx // it is one

	lease *Lease
}

type leaseInContext struct{}

// Value returns the lease, or what the message's context has.
func (c leaseContext) Value(key any) any {
	switch key.(type) {
	case leaseInContext, subjectKey:
		return c.lease
	case requests.Key:
		return &c.lease.requests
	}
	return c.Context.Value(key)
}

var (
	errLeaseAnswered = errors.New("the message was acked or nacked before middleware.Deduplicate saw it, so a failure " +
		"would lose it: remove InstantAck, or put it nowhere outside middleware.Deduplicate")
	errInsideInbox = errors.New("middleware.Deduplicate stands inside middleware.Inbox, and would remember a message " +
		"that the inbox rolls back: remove one of the two")
	errLeaseTwice = errors.New("middleware.Deduplicate stands twice on this handler: remove one")
)

// Acquire takes a lease on msg. It waits for copies that are being handled, here or in
// another process, for at most Wait; then it returns an error that wraps [ErrInProgress].
//
// A replayed message that the consumer refuses is not fresh, and nobody is asked for it.
//
// If [Lease.Fresh], the caller runs the handler with [Lease.Context] and must end with
// [Lease.Confirm] or [Lease.Release]. Otherwise it acks msg. On an error it nacks msg:
// nothing was done.
func (c *LeaseConsumer) Acquire(msg *message.Message) (*Lease, error) {
	l := &Lease{consumer: c, msg: msg, ctx: msg.Context()}
	if err := l.identify(); err != nil {
		l.notIdentified(err)
		return nil, l.fail(err)
	}
	if !l.enter() {
		l.interrupted(ErrClosed)
		return nil, ErrClosed
	}
	defer func() {
		if !l.fresh {
			l.leave()
		}
	}()
	l.observe(KindReceived, "received", nil)
	if _, is := replayed(msg); is && c.config.OnReplay == ReplayRefuse {
		l.observeReplayed(replayRefused)
		return l, nil
	}
	if err := l.obtain(); err != nil {
		l.interrupted(err)
		return nil, l.fail(err)
	}
	return l, nil
}

// Fresh reports whether the handler must run.
func (l *Lease) Fresh() bool { return l.fresh }

// Context returns the context for the handler: the message's, ended early, with the cause
// [ErrLeaseLost], if the lease is found lost while the handler runs.
func (l *Lease) Context() context.Context { return l.handler }

func (l *Lease) identify() error {
	c := l.consumer
	if answered(l.msg) {
		return errLeaseAnswered
	}
	if ambient.From(l.ctx).Open() {
		return errInsideInbox
	}
	outer, _ := l.ctx.Value(leaseInContext{}).(*Lease)
	if outer != nil && outer.msg == l.msg && outer.consumer.leases == c.leases && outer.consumer.prefix == c.prefix {
		return errLeaseTwice
	}
	key, err := c.config.Key.find(l.msg)
	if err != nil {
		return l.withoutKey(err)
	}
	l.key = key
	l.id = LeaseKey{
		Consumer: c.config.Name,
		Epoch:    c.config.Epoch,
		ID:       string(keycode.Encode(key)),
		Source:   c.config.Key.source,
	}
	l.token = rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	return nil
}

// obtain waits for the copies in this process, which cost the store nothing, and then for
// those in others. Without a copy in flight it makes no context for the wait.
func (l *Lease) obtain() error {
	c := l.consumer
	key := c.prefix + l.id.ID
	turn, taken := c.leases.turns.Try(key)
	asking := taken
	defer func() {
		if asking { // the store panicked
			l.turn.Fail()
		}
	}()
	if taken {
		l.turn = turn
		state, err := l.ask()
		if err != nil || state.Status != LeaseHeld {
			asking = false
			return l.settle(state, err)
		}
	}
	wait, cancel := context.WithTimeoutCause(l.ctx, c.config.Wait, ErrInProgress)
	defer cancel()
	if !taken {
		turn, settled, err := c.leases.turns.Take(wait, key, 0)
		if err != nil {
			return context.Cause(wait)
		}
		if settled {
			l.duplicate(ReasonWaited)
			return nil
		}
		l.turn, asking = turn, true
	}
	state, err := l.poll(wait)
	asking = false
	return l.settle(state, err)
}

// settle acts on the store's last word.
func (l *Lease) settle(state LeaseState, err error) error {
	if err != nil {
		l.turn.Fail()
		return err
	}
	if state.Status == LeaseConfirmed {
		l.turn.Settle(0)
		l.duplicate(ReasonConfirmed)
		return nil
	}
	l.start()
	return nil
}

// poll asks the store until the key is taken or confirmed, or wait ends.
func (l *Lease) poll(wait context.Context) (LeaseState, error) {
	for try := 0; ; try++ {
		state, err := l.ask()
		if err != nil || state.Status != LeaseHeld {
			return state, err
		}
		timer := time.NewTimer(nextLook(try, state.Remaining))
		select {
		case <-timer.C:
		case <-wait.Done():
			timer.Stop()
			return state, context.Cause(wait)
		}
	}
}

// nextLook grows, is never twice the same, and does not pass the end of the lease by much.
func nextLook(try int, remaining time.Duration) time.Duration {
	const first, longest = 10 * time.Millisecond, 500 * time.Millisecond
	step := min(first<<min(try, 10), longest)
	step = step/2 + rand.N(step/2) //nolint:gosec // jitter needs no secrecy
	return min(step, max(remaining, 0)+time.Millisecond)
}

// ask asks the store once, unless it is known to be down.
func (l *Lease) ask() (LeaseState, error) {
	leases := l.consumer.leases
	pass, up := leases.outage.Enter(l.ctx)
	if err := l.ctx.Err(); err != nil {
		pass.Cancel()
		return LeaseState{}, err
	}
	if !up {
		l.observe(KindOutage, leasesDown, ErrUnavailable)
		return LeaseState{}, ErrUnavailable
	}
	l.began = time.Now()
	var state LeaseState
	var err error
	asked := false
	defer func() {
		if !asked { // it may have taken the key before it panicked
			_ = l.giveBack(l.ctx)
		}
	}()
	pass.Tell(func() {
		state, err = leases.store.Acquire(l.ctx, l.id, l.token, l.consumer.config.Lease)
	})
	asked = true
	switch {
	case err == nil:
		if pass.Up() {
			leases.log.Info("inbox: the store of the leases answers again", nil)
		}
		return state, nil
	case errors.Is(err, ErrUnavailable):
		pass.Tell(func() { l.observe(KindOutage, leasesDown, err) })
		if pass.Down(l.ctx) {
			l.log().Error("inbox: the store of the leases does not answer, deliveries are held back", err, nil)
		}
	default:
		pass.Cancel()
	}
	_ = l.giveBack(l.ctx) // the key may have been taken, and only the answer lost
	return LeaseState{}, fmt.Errorf("take a lease: %w", err)
}

// start makes the context that the handler will see, and keeps the lease from ending.
func (l *Lease) start() {
	l.fresh = true
	l.handler, l.cancel = context.WithCancelCause(leaseContext{replayContext(l.ctx, l.msg), l})
	l.keep()
}

func (l *Lease) duplicate(reason string) {
	leases := l.consumer.leases
	l.observeReplayed(replayDuplicate)
	if !leases.observers.wanted(KindDuplicate) && !leases.debug {
		return
	}
	e := l.event(reason)
	leases.observers.tell(l.ctx, KindDuplicate, e)
	if leases.debug {
		leases.log.Debug("inbox: duplicate, handler not run", e.fields())
	}
}

// observe tells of l, and why.
func (l *Lease) observe(k Kind, reason string, err error) {
	if all := &l.consumer.leases.observers; all.wanted(k) {
		e := l.event(reason)
		e.Err = err
		all.tell(l.ctx, k, e)
	}
}

// observeReplayed tells what became of a message, if it was replayed.
func (l *Lease) observeReplayed(reason string) {
	if _, is := replayed(l.msg); is {
		l.consumer.leases.observers.tellReplayed(l.ctx, l.log(), l.event(reason))
	}
}

// enter and leave let [Store.Close] wait for the handlers whose leases are in its database.
func (l *Lease) enter() bool {
	store := l.consumer.leases.owner
	if store == nil {
		return true
	}
	store.warnUnattended()
	return store.work.enter()
}

func (l *Lease) leave() {
	if store := l.consumer.leases.owner; store != nil {
		store.work.leave()
	}
}

// interrupted tells the queue that delivers the message, if there is one, why the handler does
// not run.
func (l *Lease) interrupted(cause error) {
	if a := deliveredBy(l.ctx); a != nil {
		a.interrupted(cause)
	}
}

// fail names the message in err.
func (l *Lease) fail(err error) error {
	if errors.Is(err, ErrInProgress) {
		err = fmt.Errorf("%w, or another goroutine of this one, and was not done within Wait, %v",
			err, l.consumer.config.Wait)
	}
	id := l.key
	if id == "" {
		id = l.msg.UUID
	}
	return &DeliveryError{
		Consumer: l.consumer.config.Name, MessageID: id, Topic: message.SubscribeTopicFromCtx(l.ctx), Err: err,
	}
}

func (l *Lease) log() watermill.LoggerAdapter {
	return l.consumer.leases.log.With(l.event("").fields())
}

func (l *Lease) event(reason string) Event {
	replay, _ := replayed(l.msg)
	return Event{
		Consumer:  l.consumer.config.Name,
		Epoch:     l.consumer.config.Epoch,
		MessageID: l.key,
		UUID:      l.msg.UUID,
		Topic:     message.SubscribeTopicFromCtx(l.ctx),
		Type:      eventType(l.msg),
		Reason:    reason,
		Attempt:   Attempt(l.ctx),
		Metadata:  l.msg.Metadata,
		Replay:    replay,
	}
}

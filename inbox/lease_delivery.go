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

	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/original"
	"github.com/millrace-go/millrace/internal/requests"
	"github.com/millrace-go/millrace/internal/turns"
)

// leaseDelivery is one delivery to a consumer of leases. If it is fresh it holds the lease of its
// key, for a time; otherwise the message was handled before.
type leaseDelivery struct {
	consumer *leaseConsumer
	msg      *message.Message
	ctx      context.Context //nolint:containedctx // the message's own, as it was on entry
	key      string          // readable
	id       lease.Key
	token    int64 // tells this attempt from all others

	fresh   bool // the handler must run
	came    *original.Message
	given   leaseContext // the parent of handler
	turn    turns.Turn
	handler context.Context //nolint:containedctx // given to the handler
	cancel  context.CancelCauseFunc
	began   time.Time
	sure    time.Time // until then nobody else can take the lease; guarded by heart.mu

	runs     ambient.Runs
	gone     bool          // it holds nothing any more
	over     atomic.Bool   // the handler has returned
	requests requests.Made // with a key of the message
}

// leaseContext is the context of a handler, which carries its delivery.
type leaseContext struct {
	context.Context //nolint:containedctx // it is one

	lease *leaseDelivery
}

type leaseInContext struct{}

// leaseOf returns the delivery whose handler runs for msg, or for the message that it is a copy of; nil if there is none.
func leaseOf(msg *message.Message) *leaseDelivery {
	l, _ := msg.Context().Value(leaseInContext{}).(*leaseDelivery)
	if l == nil || l.over.Load() || l.msg != msg && original.From(msg) != l.came {
		return nil // or the context came with another message
	}
	return l
}

// Value returns the delivery, or the value of the message's context.
func (c *leaseContext) Value(key any) any {
	switch key.(type) {
	case leaseInContext, subjectKey:
		return c.lease
	case requests.Key:
		return &c.lease.requests
	case original.Key:
		return c.lease.came
	}
	return c.Context.Value(key)
}

var (
	errLeaseAcked = errors.New("the message was acked before middleware.Deduplicate saw it, so a failure " +
		"would lose it: remove InstantAck, or put it nowhere outside middleware.Deduplicate")
	errInsideInbox = errors.New("middleware.Deduplicate stands inside middleware.Inbox, and would remember a message " +
		"that the inbox rolls back: remove one of the two")
	errOutsideInbox = errors.New("middleware.Deduplicate stands outside of middleware.Inbox, VersionGate or Batch, and would drop a message " +
		"that these have held or parked when it comes again: remove middleware.Deduplicate")
	errLeaseTwice = errors.New("middleware.Deduplicate stands twice on this handler: remove one")
)

// handle runs h for one delivery, unless the message was handled before. It restores the message's
// context on every exit: middlewares further in leave cancelled ones behind.
func (c *leaseConsumer) handle(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)

	l, err := c.acquire(msg)
	if err != nil || !l.fresh {
		return nil, err
	}
	as := original.Arrive(msg)
	returned := false
	defer func() {
		if !returned { // free the key; the panic goes on with its stack
			as.Restore(msg)
			_ = l.release(errPanic)
		}
	}()
	as.HandOver(msg)
	l.came = as.Came
	msg.SetContext(l.handler)
	produced, err := h(msg)
	returned = true
	produced = original.Apart(ctx, produced, msg)
	as.Restore(msg)
	if err == nil {
		err = l.approve()
	}
	if err != nil {
		return nil, l.release(err)
	}
	if err := l.finish(produced); err != nil {
		return nil, err
	}
	return produced, nil
}

// watch runs h, next to which the guard stands, and keeps how it ended. A middleware in between may run it again: there
// is no transaction that has both runs.
func (l *leaseDelivery) watch(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	l.runs.Enter()
	defer l.runs.Leave()
	l.runs.Failed(errPanic) // a Recoverer outside may turn the panic into an error
	produced, err := h(msg)
	l.runs.Failed(err)
	return produced, err
}

// approve returns an error if a run that returned none must not count.
func (l *leaseDelivery) approve() error {
	if l.runs.Running() {
		return fmt.Errorf("%w: %w", ErrSwallowed, errReturnedBefore)
	}
	if err := l.runs.Failure(); err != nil {
		return fmt.Errorf("%w: %w", ErrSwallowed, err)
	}
	if closed(l.msg.Nacked()) {
		return errNacked
	}
	if closed(l.msg.Acked()) {
		l.log().Error("inbox: the message was acked before its key was confirmed, so a crash can lose it", errLeaseAcked, nil)
	}
	return nil
}

// acquire takes a lease on msg. It waits for copies that are being handled, in this process or
// another, for at most Wait; then it returns an error that wraps [ErrInProgress]. After an error
// nothing is held. A replayed message that the consumer refuses is not fresh, and the store is not
// asked.
//
// If the delivery is fresh, the caller runs the handler and must end with finish or release.
func (c *leaseConsumer) acquire(msg *message.Message) (*leaseDelivery, error) {
	l := &leaseDelivery{consumer: c, msg: msg, ctx: msg.Context()}
	if err := l.identify(); err != nil {
		l.notIdentified(err)
		return nil, l.fail(err)
	}
	if !l.enter() {
		l.reject(ErrClosed)
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
		l.unobtained(err)
		return nil, l.fail(err)
	}
	return l, nil
}

func (l *leaseDelivery) identify() error {
	c := l.consumer
	if err := answeredBefore(l.msg, errLeaseAcked); err != nil {
		return err
	}
	if ambient.From(l.ctx).Open() {
		return errInsideInbox
	}
	if outer := leaseOf(l.msg); outer != nil && outer.consumer.turns == c.turns {
		return errLeaseTwice
	}
	if err := l.refuseOtherQueue(); err != nil {
		return err
	}
	key, id, err := l.findKey()
	if err != nil {
		return l.withoutKey(err)
	}
	l.key = key
	l.id = lease.Key{
		Consumer: c.config.Name,
		Epoch:    c.config.Epoch,
		ID:       string(id),
		Source:   c.config.Key.source,
	}
	l.token = rand.Int64N(1<<62) + 1 //nolint:gosec // tells attempts apart, keeps no secret
	return nil
}

// refuseOtherQueue returns an error if the queue of another consumer delivers the message. The queue may have the name of the
// handler, or that of the consumer.
func (l *leaseDelivery) refuseOtherQueue() error {
	a, config := deliveredBy(l.ctx), &l.consumer.config
	if a == nil || config.Handler == "" || a.queue.name.Name == config.Name || a.queue.name.Name == config.Handler {
		return nil
	}
	if came := original.From(l.msg); came == nil || !came.Taken() {
		l.ctx = undelivered(l.ctx)
		return nil
	}
	return fmt.Errorf("%w: give pubsub.Durable the Consumer of middleware.Deduplicate, or the handler's name", otherQueue(a.queue))
}

// findKey returns the key of the message, as it is read and as it is stored. A stored message may not have its topic in its
// context.
func (l *leaseDelivery) findKey() (key string, id []byte, err error) {
	of, stored := l.consumer.config.Key, leasedOf(l.ctx)
	switch {
	case stored == nil:
		key, err = of.find(l.msg)
	case l.keepsID(stored):
		return keycode.String(stored.row.MessageID), stored.row.MessageID, nil
	default:
		key, err = of.valueFrom(string(stored.row.Topic), l.msg)
	}
	if err != nil {
		return "", nil, err
	}
	return key, keycode.Encode(key), nil
}

// keepsID reports whether the message counts under the id that it is stored with. A queue with the key of the consumer knows
// two things that the message does not tell: that it collides with another one, and its place in a log.
func (l *leaseDelivery) keepsID(stored *Leased) bool {
	key, row := l.consumer.config.Key, &stored.row
	if key.source != stored.queue.config.Key.String() || keycode.IsKeyless(row.MessageID) {
		return false
	}
	if came := original.From(l.msg); came == nil || !came.Taken() {
		return false // its context came with another message
	}
	return row.Original != nil || key.ByPlace()
}

// interrupted tells the queue that delivers the message, if there is one, why the handler does not
// run.
func (l *leaseDelivery) interrupted(cause error) {
	if a := deliveredBy(l.ctx); a != nil {
		a.interrupted(cause)
	}
}

// handled tells the queue that delivers the message, if there is one, that the message is handled.
func (l *leaseDelivery) handled() {
	if a := deliveredBy(l.ctx); a != nil {
		a.succeeded()
	}
}

// reject is interrupted, and delays the nack of a message that no queue delivers from its table, because
// many sources redeliver it at once.
func (l *leaseDelivery) reject(cause error) {
	l.interrupted(cause)
	if leasedOf(l.ctx) == nil && l.ctx.Err() == nil && !answered(l.msg) {
		l.consumer.pace.wait(l.ctx)
	}
}

// unobtained is reject, unless a wait for the store or for a copy has delayed the nack already.
func (l *leaseDelivery) unobtained(cause error) {
	if errors.Is(cause, ErrUnavailable) || errors.Is(cause, ErrInProgress) {
		l.interrupted(cause)
		return
	}
	l.reject(cause)
}

// fail names the message in err.
func (l *leaseDelivery) fail(err error) error {
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

func (l *leaseDelivery) log() watermill.LoggerAdapter {
	return l.consumer.leases.log.With(l.event("").fields())
}

func (l *leaseDelivery) event(reason string) Event {
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

// withoutKey returns the error for a message without a key, which no retry would change.
// Deduplicate has no table to store it in. If the message is not to blame for err, withoutKey
// returns err.
func (l *leaseDelivery) withoutKey(err error) error {
	if _, err := noKey(l.ctx, err); err != nil {
		return err
	}
	return &noKeyError{Terminal(err)}
}

type noKeyError struct{ error }

func (e *noKeyError) Unwrap() error { return e.error }

// notIdentified reports why the handler does not run.
func (l *leaseDelivery) notIdentified(err error) {
	var none *noKeyError
	if errors.As(err, &none) {
		l.observe(KindFailed, ReasonNoKey, err)
		if a := deliveredBy(l.ctx); a != nil {
			a.failed(l.ctx, err, nil)
			return
		}
	}
	l.reject(err)
}

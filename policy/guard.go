package policy

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
)

// guard returns one middleware made of those that the rules of handler choose.
func (w *Wired) guard(handler string, r Rules) (message.HandlerMiddleware, error) {
	switch r.Strategy {
	case None:
		return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
	case Dedup:
		d, err := w.deduplicate(r)
		return d.Middleware, err
	}
	i, err := w.inbox(handler, r)
	if err != nil {
		return nil, err
	}
	if _, queued := r.queued(); queued {
		if _, err := w.durable("any", r); err != nil {
			return nil, err
		}
	}
	if !r.Strategy.means("version") {
		return i.Middleware, nil
	}
	g, err := w.gate(r)
	if err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc { return i.Middleware(g.Middleware(next)) }, nil
}

func (w *Wired) inbox(handler string, r Rules) (millrace.Inbox, error) {
	var problems [5]error
	i := w.wiring.Inbox
	i.Store, problems[0] = w.wiring.store(r)
	i.Outbox, problems[1] = w.wiring.outbox(r)
	i.Key, problems[2] = w.wiring.key(r)
	i.Before, problems[3] = w.wiring.before(handler, r)
	i.FormerKey, problems[4] = w.wiring.formerKey(r)
	i.Consumer, i.Epoch = r.Consumer, r.Epoch
	i.Timeout, i.Retention, i.Window = time.Duration(r.Timeout), time.Duration(r.Retention), time.Duration(r.Window)
	i.OnCollision, i.OnReplay = collisions[r.Collision], replays[r.Replay]
	i.Journal = r.Journal
	i.RequireTx = i.RequireTx || r.Strategy == Intent
	if err := errors.Join(problems[:]...); err != nil {
		return i, err
	}
	return i, i.Validate()
}

func (w *Wired) gate(r Rules) (millrace.VersionGate, error) {
	g := w.wiring.Gate
	version, err := w.wiring.version(r)
	if err != nil {
		return g, err
	}
	g.Version, g.Optional = version, r.Version.Sequence == SequenceOptional
	g.OnGap, g.First = gaps[r.Version.OnGap], firsts[r.Version.First]
	if r.Strategy == Latest {
		g.OnGap = inbox.GapLatest
	}
	g.GapFor = time.Duration(r.Version.GapFor)
	g.MaxHeld, g.HeldFor = r.Version.MaxHeld, time.Duration(r.Version.HeldFor)
	return g, g.Validate()
}

func (w *Wired) deduplicate(r Rules) (millrace.Deduplicate, error) {
	d := w.wiring.Deduplicate
	key, err := w.wiring.key(r)
	if err != nil {
		return d, err
	}
	d.Claims = w.wiring.Leases
	if r.Store != "" || d.Claims == nil {
		store, err := w.wiring.store(r)
		if err != nil {
			return d, err
		}
		d.Claims = store.Leases()
	}
	d.Consumer, d.Epoch, d.Key, d.Retention = r.Consumer, r.Epoch, key, time.Duration(r.Retention)
	d.OnReplay = replays[r.Replay]
	return d, d.Validate()
}

func (w *Wired) durable(handler string, r Rules) (pubsub.Durable, error) {
	var problems [3]error
	d := w.wiring.Durable
	d.Store, problems[0] = w.wiring.store(r)
	d.Key, problems[1] = w.wiring.key(r)
	d.OrderKey, problems[2] = w.wiring.orderKey(r)
	d.Consumer, d.Epoch = r.Consumer, r.Epoch
	if d.Consumer == "" {
		d.Consumer = handler
	}
	d.Mode = pubsub.StoreOnFailure
	if r.Ack == AckStored {
		d.Mode = pubsub.StoreFirst
	}
	d.OnParked = inbox.HoldKey
	if r.OnParked == Continue {
		d.OnParked = inbox.Continue
	}
	d.MaxAttempts, d.MinBackoff, d.MaxBackoff = r.Retry.Attempts, time.Duration(r.Retry.Backoff), time.Duration(r.Retry.MaxBackoff)
	d.Fingerprint = w.wiring.Inbox.Fingerprint
	if d.Redelivered == nil {
		d.Redelivered = w.wiring.Inbox.Redelivered
	}
	return d, errors.Join(problems[:]...)
}

// Subscriber returns sub as the rules of handler have it: with a queue behind it, or as it
// is. Ask it for each handler, and a change of the policy needs none of the code:
//
//	orders, err := wired.Subscriber("billing", orders)
//	router.AddConsumerHandler("billing", "orders", orders, bill)
//
// [Router.Run] fails if a handler needs a queue and Subscriber was not asked.
func (w *Wired) Subscriber(handler string, sub message.Subscriber) (message.Subscriber, error) {
	rules, ok := w.policy.For(handler)
	if !ok {
		return nil, w.missing(handler)
	}
	if _, queued := rules.queued(); queued {
		d, err := w.durable(handler, rules)
		if err == nil {
			sub, err = d.Decorate(sub)
		}
		if err != nil {
			return nil, w.problems(handler, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribed[handler] = true
	return sub, nil
}

// The middlewares' values for those of a policy. A missing one is the middleware's default.
var (
	collisions = map[Collision]inbox.OnCollision{
		CollisionPark: inbox.CollisionPark, CollisionDrop: inbox.CollisionDrop, CollisionFail: inbox.CollisionFail,
	}
	replays = map[Replay]inbox.ReplayRule{
		ReplayAllow: inbox.ReplayAllow, ReplaySuppress: inbox.ReplaySuppress, ReplayRefuse: inbox.ReplayRefuse,
	}
	gaps   = map[OnGap]inbox.OnGap{GapHold: inbox.GapHold, GapFail: inbox.GapFail}
	firsts = map[First]inbox.First{FirstIsOne: inbox.FirstIsOne, FirstIsZero: inbox.FirstIsZero, FirstSeen: inbox.FirstSeen}
)

package inbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Event is what an [Observer] gets. Fields that do not apply are empty.
type Event struct {
	Kind      Kind
	Consumer  string
	Epoch     int
	MessageID string // the key, readable
	UUID      string
	Topic     string
	Type      string // event type
	Reason    string // one of a small set, so it can be a label of a metric; details are in Err
	Duration  time.Duration
	Count     int
	Attempt   int // at a stored message, 1 for the first; 0 if no pubsub.Durable delivers
	Err       error
	Metadata  message.Metadata // of the message, as they were then, if at hand; do not change them
	Replay    string           // the name of the replay that sent the message
}

// Observer gets an event for each decision, for metrics and traces. [On] makes one from a function. A type of your own
// that wants only some kinds of events implements [SelectiveObserver] too.
//
// Observe is called in the delivery's goroutine and must be quick. A panic there continues after the delivery has freed
// everything it holds. In a queue, the background work or a heartbeat, a panic is logged, and counted by [Store.Panics].
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// SelectiveObserver is an [Observer] of some kinds of events. Wants is called when the Store or the Leases are made, not
// for each event; the caller of their constructor gets a panic in it. An event that no observer wants costs nothing.
type SelectiveObserver interface {
	Observer
	Wants(k Kind) bool
}

// On returns an [Observer] that calls observe for events of these kinds, or of every kind if none is given. Without
// observe it returns nil, which is ignored among Observers.
func On(observe func(ctx context.Context, e Event), kinds ...Kind) Observer {
	if observe == nil {
		return nil
	}
	return onKinds{observe, kinds}
}

type onKinds struct {
	observe func(ctx context.Context, e Event)
	kinds   []Kind
}

func (o onKinds) Observe(ctx context.Context, e Event) { o.observe(ctx, e) }

func (o onKinds) Wants(k Kind) bool { return len(o.kinds) == 0 || slices.Contains(o.kinds, k) }

// observers holds, for each kind, the observers that want it.
type observers [len(kindNames)][]Observer

func newObservers(all []Observer) (o observers) {
	for _, one := range all {
		if one == nil {
			continue
		}
		wants := func(Kind) bool { return true }
		if selective, is := one.(SelectiveObserver); is {
			wants = selective.Wants
		}
		for k := KindReceived; int(k) < len(o); k++ {
			if wants(k) {
				o[k] = append(o[k], one)
			}
		}
	}
	return o
}

func (o *observers) wanted(k Kind) bool { return len(o[k]) > 0 }

// tell gives e, as an event of kind k, to the observers that want it.
func (o *observers) tell(ctx context.Context, k Kind, e Event) {
	if !o.wanted(k) {
		return
	}
	e.Kind = k
	e.Metadata = maps.Clone(e.Metadata) // who has the message may change its own while an observer keeps e
	for _, one := range o[k] {
		one.Observe(ctx, e)
	}
}

// observe reports d with this reason.
func (d *delivery) observe(k Kind, reason string, err error) {
	if all := &d.consumer.store.observers; all.wanted(k) {
		e := d.event(reason)
		e.Err = err
		all.tell(d.ctx, k, e)
	}
}

// tellApart gives e to the observers in background work: if one panics, the others still get it.
func (s *Store) tellApart(ctx context.Context, k Kind, e Event) {
	for _, o := range s.observers[k] {
		told := e // a copy, so that only an event that an observer gets is allocated
		told.Kind = k
		told.Metadata = maps.Clone(e.Metadata)
		s.survive(ctx, func(ctx context.Context) { o.Observe(ctx, told) })
	}
}

func (s *Store) observeContention(d *delivery, err error) {
	if !s.observers.wanted(KindContention) && !s.debug.Load() {
		return
	}
	e := d.event("retried")
	e.Err = err
	s.tellContention(d.ctx, e)
}

func (s *Store) tellContention(ctx context.Context, e Event) {
	s.observers.tell(ctx, KindContention, e)
	if s.debug.Load() {
		s.log.Debug("inbox: deadlock or lock wait, tried again", e.fields())
	}
}

func (s *Store) observeGap(d *delivery, gap error) {
	if !s.observers.wanted(KindGap) && !s.debug.Load() {
		return
	}
	e := d.event(ReasonGap)
	e.Err = gap
	s.observers.tell(d.ctx, KindGap, e)
	if s.debug.Load() {
		s.log.Debug("inbox: a message came before its predecessor", e.fields())
	}
}

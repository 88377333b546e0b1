package outbox

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Event is a decision of the relay, as an [Observer] gets it. Fields that do not apply are empty.
type Event struct {
	Kind     Kind
	Topic    string
	UUID     string
	Reason   string
	Count    int           // of messages, or of shards
	Attempts int           // of a message
	Latency  time.Duration // since the oldest of the messages was stored
	Duration time.Duration
	Err      error
	Metadata message.Metadata // of the message that the event is about; observers must not change it
}

// Kind is what an [Event] is about. Later releases may add kinds: an observer must ignore those
// that it does not know.
type Kind uint8

// The kinds of events.
const (
	// KindPublished reports the messages of one topic that the broker has confirmed together.
	KindPublished Kind = iota + 1

	// KindAttempt reports a message that failed and will be retried, with or without an attempt spent.
	KindAttempt

	// KindParked reports a message that the relay parked.
	KindParked

	// KindOutage reports that nothing gets through, that a probe failed, and, without an error, that the outage
	// is over or the relay stops.
	KindOutage

	// KindShards reports how many shards the relay owns, whenever that changes.
	KindShards

	// KindPurged reports how many sent messages the relay deleted after their retention.
	KindPurged
)

var kindNames = [...]string{
	KindPublished: "published",
	KindAttempt:   "attempt",
	KindParked:    "parked",
	KindOutage:    "outage",
	KindShards:    "shards",
	KindPurged:    "purged",
}

// String returns the name of the kind, such as "published".
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Observer is told of decisions, for metrics and traces. [On] makes one from a function. A type
// of your own that wants only some kinds of events implements [SelectiveObserver] too.
//
// The relay waits for Observe, so it must be quick. An observer that does not return within ten
// seconds gets no more events until it does. A panic in it is logged and counted by
// [Relay.Panics], and the relay goes on.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// SelectiveObserver is an [Observer] of some kinds of events. [NewRelay] calls Wants once for
// each kind; a panic in it reaches the caller of NewRelay.
type SelectiveObserver interface {
	Observer
	Wants(k Kind) bool
}

// On returns an [Observer] that calls observe for events of the given kinds, or of every kind if
// none is given. Without observe it returns nil, which is ignored among Observers.
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

// watched is an observer that may hang.
type watched struct {
	Observer
	late atomic.Pointer[chan struct{}] // of the call that the relay gave up on: closed when that returns
}

// hangs reports whether a call that the relay gave up on has not returned yet.
func (w *watched) hangs() bool {
	late := w.late.Load()
	if late == nil {
		return false
	}
	select {
	case <-*late:
		return false
	default:
		return true
	}
}

// observers holds, for each kind, the observers that want it.
type observers [len(kindNames)][]*watched

func newObservers(all []Observer) (o observers) {
	for _, one := range all {
		if one == nil {
			continue
		}
		wants := func(Kind) bool { return true }
		if selective, is := one.(SelectiveObserver); is {
			wants = selective.Wants
		}
		w := &watched{Observer: one}
		for k := KindPublished; int(k) < len(o); k++ {
			if wants(k) {
				o[k] = append(o[k], w)
			}
		}
	}
	return o
}

// tell passes e, as kind k, to each observer that wants it, also after another one panicked.
func (r *Relay) tell(ctx context.Context, k Kind, e Event) {
	for _, o := range r.observers[k] {
		told := e // allocated only where somebody listens
		told.Kind = k
		if !o.hangs() {
			r.observe(ctx, o, told)
		}
	}
}

// observerPatience is how long the relay waits for an observer: nothing is sent meanwhile.
const observerPatience = 10 * time.Second

func (r *Relay) observe(ctx context.Context, o *watched, e Event) {
	done := make(chan struct{})
	r.beside("an observer", func() error { o.Observe(ctx, e); return nil }, func(error) { close(done) }) // beside logs it
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		o.late.Store(&done)
		r.log.Error("outbox: an observer does not return; it gets no more events until it does", nil,
			watermill.LogFields{"observer": fmt.Sprintf("%T", o.Observer), "kind": e.Kind.String()})
	}
}

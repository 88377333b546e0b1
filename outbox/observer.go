package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Event is what an [Observer] is told. Fields that do not apply are empty.
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
	Metadata message.Metadata // of the one message that it is about; not to be changed
}

// Kind is what an [Event] is about. Later releases may add kinds: an observer ignores those that it does not know.
type Kind uint8

// The kinds of events.
const (
	// KindPublished is each call of the publisher whose messages it confirmed.
	KindPublished Kind = iota + 1

	// KindAttempt is each message that failed and is to be tried again, with or without an attempt spent.
	KindAttempt

	// KindParked is each message that was parked.
	KindParked

	// KindOutage tells when nothing gets through, at each probe, and when it is over.
	KindOutage

	// KindShards tells how many shards the relay owns, whenever that changes.
	KindShards

	// KindPurged counts the sent messages that were deleted after their retention.
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

// String returns what the kind is called, such as "published".
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Observer is told of decisions, for metrics and traces. [On] makes one of a function; a type of your own implements
// [SelectiveObserver] too where it wants some kinds of events only.
//
// Observe is called while the relay waits and must be quick. One that panics is logged and counted by [Relay.Panics],
// and the relay goes on.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// SelectiveObserver is an [Observer] of some kinds of events. Wants is asked by [NewRelay], not for each event; a panic in
// it goes on its way.
type SelectiveObserver interface {
	Observer
	Wants(k Kind) bool
}

// On returns an [Observer] that calls observe for events of the kinds, or of every kind where none is given.
func On(observe func(ctx context.Context, e Event), kinds ...Kind) Observer {
	return onKinds{observe, kinds}
}

type onKinds struct {
	observe func(ctx context.Context, e Event)
	kinds   []Kind
}

func (o onKinds) Observe(ctx context.Context, e Event) { o.observe(ctx, e) }

func (o onKinds) Wants(k Kind) bool { return len(o.kinds) == 0 || slices.Contains(o.kinds, k) }

// observers holds, for each kind, those who want it.
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
		for k := KindPublished; int(k) < len(o); k++ {
			if wants(k) {
				o[k] = append(o[k], one)
			}
		}
	}
	return o
}

// tell tells who wants it of e, which is of kind k, each whatever became of the others.
func (r *Relay) tell(ctx context.Context, k Kind, e Event) {
	for _, o := range r.observers[k] {
		told := e // so that it is allocated only where somebody listens
		told.Kind = k
		_ = r.await("an observer", func() error { o.Observe(ctx, told); return nil }) // told of
	}
}

package outbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// RelayEvent is what an observer is told. Fields that do not apply are empty.
type RelayEvent struct {
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

// RelayObserver is told of decisions, for metrics and traces. A value in
// [RelayConfig.Observers] implements one or more of the interfaces of one method below.
// They are called while the relay waits and must be quick. One that panics is logged and counted
// by [Relay.Panics], and the relay goes on.
type RelayObserver any

type (
	// PublishedObserver is told of each call of the publisher whose messages it confirmed.
	PublishedObserver interface {
		ObservePublished(ctx context.Context, e RelayEvent)
	}
	// AttemptObserver is told of each message that failed and is to be tried again, with or
	// without an attempt spent.
	AttemptObserver interface {
		ObserveAttempt(ctx context.Context, e RelayEvent)
	}
	// ParkedObserver is told of each message that was parked.
	ParkedObserver interface {
		ObserveParked(ctx context.Context, e RelayEvent)
	}
	// OutageObserver is told when nothing gets through, at each probe, and when it is over.
	OutageObserver interface {
		ObserveOutage(ctx context.Context, e RelayEvent)
	}
	// ShardsObserver is told of how many shards the relay owns, whenever that changes.
	ShardsObserver interface {
		ObserveShards(ctx context.Context, e RelayEvent)
	}
	// PurgedObserver is told of sent messages deleted after their retention.
	PurgedObserver interface {
		ObservePurged(ctx context.Context, e RelayEvent)
	}
)

// relayObservers holds each kind in a slice of its own: no event costs a type assertion.
type relayObservers struct {
	published []PublishedObserver
	attempt   []AttemptObserver
	parked    []ParkedObserver
	outage    []OutageObserver
	shards    []ShardsObserver
	purged    []PurgedObserver
}

func newRelayObservers(all []RelayObserver) (o relayObservers) {
	for _, one := range all {
		o.published = appendIf(o.published, one)
		o.attempt = appendIf(o.attempt, one)
		o.parked = appendIf(o.parked, one)
		o.outage = appendIf(o.outage, one)
		o.shards = appendIf(o.shards, one)
		o.purged = appendIf(o.purged, one)
	}
	return o
}

// tell tells observers of e, each whatever became of the others.
func tell[O any](
	ctx context.Context, r *Relay, observers []O, observe func(O, context.Context, RelayEvent), e RelayEvent,
) {
	for _, o := range observers {
		_ = r.await("an observer", func() error { observe(o, ctx, e); return nil }) // told of
	}
}

func appendIf[T any](list []T, one RelayObserver) []T {
	if t, ok := one.(T); ok {
		return append(list, t)
	}
	return list
}

package outbox_test

import (
	"context"
	"slices"
	"sync"

	"github.com/millrace-go/millrace/outbox"
)

// observed is an event and the method that told it.
type observed struct {
	kind string
	outbox.RelayEvent
}

// events remembers everything that a relay tells.
type events struct {
	mu  sync.Mutex
	all []observed
}

func (e *events) observe(c *outbox.RelayConfig) { c.Observers = append(c.Observers, e) }

func (e *events) add(kind string, event outbox.RelayEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, observed{kind, event})
}

// of returns the events of one kind.
func (e *events) of(kind string) []outbox.RelayEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	var some []outbox.RelayEvent
	for _, o := range e.all {
		if o.kind == kind {
			some = append(some, o.RelayEvent)
		}
	}
	return some
}

// about returns the events of one kind that name a message.
func (e *events) about(kind, uuid string) []outbox.RelayEvent {
	return slices.DeleteFunc(e.of(kind), func(o outbox.RelayEvent) bool { return o.UUID != uuid })
}

func (e *events) ObservePublished(_ context.Context, o outbox.RelayEvent) { e.add("published", o) }
func (e *events) ObserveAttempt(_ context.Context, o outbox.RelayEvent)   { e.add("attempt", o) }
func (e *events) ObserveParked(_ context.Context, o outbox.RelayEvent)    { e.add("parked", o) }
func (e *events) ObserveOutage(_ context.Context, o outbox.RelayEvent)    { e.add("outage", o) }
func (e *events) ObserveShards(_ context.Context, o outbox.RelayEvent)    { e.add("shards", o) }
func (e *events) ObservePurged(_ context.Context, o outbox.RelayEvent)    { e.add("purged", o) }

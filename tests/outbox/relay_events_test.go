package outbox_test

import (
	"context"
	"slices"
	"sync"

	"github.com/millrace-go/millrace/outbox"
)

// events remembers everything that a relay tells.
type events struct {
	mu  sync.Mutex
	all []outbox.Event
}

func (e *events) observe(c *outbox.RelayConfig) { c.Observers = append(c.Observers, e) }

func (e *events) Observe(_ context.Context, event outbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// of returns the events of one kind.
func (e *events) of(kind string) []outbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var some []outbox.Event
	for _, o := range e.all {
		if o.Kind.String() == kind {
			some = append(some, o)
		}
	}
	return some
}

// about returns the events of one kind that name a message.
func (e *events) about(kind, uuid string) []outbox.Event {
	return slices.DeleteFunc(e.of(kind), func(o outbox.Event) bool { return o.UUID != uuid })
}

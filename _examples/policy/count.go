package main

import (
	"context"
	"sync"

	"github.com/millrace-go/millrace/inbox"
)

// counter is an observer that counts decisions by consumer.
type counter struct {
	mu    sync.Mutex
	count map[string]int
}

// Observe counts by the names of the kinds, such as "duplicate" and "held".
func (c *counter) Observe(_ context.Context, e inbox.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[e.Consumer+" "+e.Kind.String()]++
}

func (c *counter) of(consumer, what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[consumer+" "+what]
}

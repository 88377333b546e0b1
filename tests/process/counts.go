package process

import (
	"context"
	"sync"

	"github.com/millrace-go/millrace/inbox"
)

// counts counts what observers are told.
type counts struct {
	mu   sync.Mutex
	seen map[string]int
}

// Observe counts.
func (c *counts) Observe(_ context.Context, e inbox.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[e.Kind.String()]++
}

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

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

func (c *counts) add(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[kind]++
}

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// ObserveCompleted counts.
func (c *counts) ObserveCompleted(context.Context, inbox.Event) { c.add("completed") }

// ObserveFailed counts.
func (c *counts) ObserveFailed(context.Context, inbox.Event) { c.add("failed") }

// ObserveDuplicate counts.
func (c *counts) ObserveDuplicate(context.Context, inbox.Event) { c.add("duplicate") }

// ObserveSettled counts.
func (c *counts) ObserveSettled(context.Context, inbox.Event) { c.add("settled") }

// ObserveContention counts.
func (c *counts) ObserveContention(context.Context, inbox.Event) { c.add("contention") }

// ObserveOutage counts.
func (c *counts) ObserveOutage(context.Context, inbox.Event) { c.add("outage") }

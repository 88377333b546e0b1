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

func (c *counter) add(e inbox.Event, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[e.Consumer+" "+what]++
}

func (c *counter) of(consumer, what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[consumer+" "+what]
}

func (c *counter) ObserveDuplicate(_ context.Context, e inbox.Event) { c.add(e, "duplicate") }
func (c *counter) ObserveStale(_ context.Context, e inbox.Event)     { c.add(e, "stale") }
func (c *counter) ObserveHeld(_ context.Context, e inbox.Event)      { c.add(e, "held") }
func (c *counter) ObserveFailed(_ context.Context, e inbox.Event)    { c.add(e, "failed") }
func (c *counter) ObserveParked(_ context.Context, e inbox.Event)    { c.add(e, "parked") }

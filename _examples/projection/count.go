package main

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// counter counts what the broker delivers and what the inbox and its gate decide.
type counter struct {
	mu      sync.Mutex
	count   map[string]int
	changed chan struct{} // gets a token at each change
}

func newCounter() *counter {
	return &counter{count: make(map[string]int), changed: make(chan struct{}, 1)}
}

func (c *counter) add(what string) {
	c.mu.Lock()
	c.count[what]++
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *counter) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[what]
}

// await returns when something was counted after which done is true.
func (c *counter) await(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-c.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// counted is a subscriber whose deliveries, acks and nacks are counted.
type counted struct {
	message.Subscriber
	*counter
}

func (c counted) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := c.Subscriber.Subscribe(ctx, topic)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			c.add("delivered")
			go func() {
				select {
				case <-msg.Acked():
					c.add("acked")
				case <-msg.Nacked():
					c.add("nacked")
				}
			}()
			out <- msg
		}
	}()
	return out, err
}

// Observe counts by the names of the kinds, such as "completed", "stale" and "held".
func (c *counter) Observe(_ context.Context, e inbox.Event) { c.add(e.Kind.String()) }

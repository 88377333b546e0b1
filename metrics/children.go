package metrics

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// Values of labels: what those beyond the limit are counted as, and those that are empty,
// which to Prometheus would be no label.
const (
	other = "other"
	none  = "none"
)

// children keeps what belongs to each value of a label. A value that is known costs a look
// into a map that nobody changes. After limit of them all others are one, where there is a
// limit.
type children[T any] struct {
	known atomic.Pointer[map[string]T]
	mu    sync.Mutex
	limit int
	make  func(value string) T
}

func newChildren[T any](limit int, make func(value string) T) *children[T] {
	c := &children[T]{limit: limit, make: make}
	c.known.Store(&map[string]T{})
	return c
}

func (c *children[T]) of(value string) T {
	if child, found := (*c.known.Load())[value]; found {
		return child
	}
	return c.add(value)
}

func (c *children[T]) add(value string) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := *c.known.Load()
	if c.limit > 0 && len(known) >= c.limit {
		value = other
	}
	if child, found := known[value]; found {
		return child
	}
	child := c.make(clean(value))
	next := maps.Clone(known)
	next[value] = child
	c.known.Store(&next)
	return child
}

// clean makes a value that may have come with a message one that Prometheus takes. The name
// of a consumer is not cut.
func clean(value string) string {
	const most = 255
	return cmp.Or(strings.ToValidUTF8(value[:min(len(value), most)], "?"), none)
}

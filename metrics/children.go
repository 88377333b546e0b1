package metrics

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// Label values for values beyond the limit, and for empty values, which Prometheus treats as a
// missing label.
const (
	other = "other"
	none  = "none"
)

// mostReasons bounds labels whose values package inbox documents. Config.MaxValues does not count for them: alerts name
// some of them.
const mostReasons = 50

// children has a T for each value of a label. A known value costs a look-up in a map that never
// changes. If there is a limit, all values beyond it share one T.
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

// clean turns a value from a message into one that Prometheus accepts. It does not shorten names of
// consumers.
func clean(value string) string {
	const most = 255
	return cmp.Or(strings.ToValidUTF8(value[:min(len(value), most)], "?"), none)
}

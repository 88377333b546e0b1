// Package requests remembers the requests that a handler has made, by their keys.
package requests

import (
	"context"
	"sync"
)

// Made holds the requests of one delivery. The zero value is ready to use.
type Made struct {
	mu   sync.Mutex
	keys map[string][32]byte
}

// Key is the context key of [Made].
type Key struct{}

// From returns the requests of the delivery that ctx belongs to, nil if there is none.
func From(ctx context.Context) *Made {
	m, _ := ctx.Value(Key{}).(*Made)
	return m
}

// Note records a request with this fingerprint. It reports whether all requests with the key have
// the same fingerprint.
func (m *Made) Note(key string, fingerprint [32]byte) (alike bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first, known := m.keys[key]; known {
		return first == fingerprint
	}
	if m.keys == nil {
		m.keys = make(map[string][32]byte)
	}
	m.keys[key] = fingerprint
	return true
}

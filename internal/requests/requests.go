// Package requests remembers which requests a handler has made under which key.
package requests

import (
	"context"
	"sync"
)

// Made is what one delivery of a message has asked for. The zero value is ready to use.
type Made struct {
	mu   sync.Mutex
	keys map[string][32]byte
}

// Key is what a [Made] is found by in the context of a handler.
type Key struct{}

// From returns what was asked for in the delivery that ctx belongs to, nil where there is none.
func From(ctx context.Context) *Made {
	m, _ := ctx.Value(Key{}).(*Made)
	return m
}

// Note notes a request with this fingerprint and reports whether all that had the key are like it.
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

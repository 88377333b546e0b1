package matrix_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox/inboxtest"
)

// refusal is a pair that cannot be right: of two features that begin with these names.
type refusal struct {
	one, other string
	text       string // in the error
	late       bool   // each message is refused, since the parts know of each other only then
}

var refusals = []refusal{
	{"OrderKey", "StoreOnFailure", "OrderKey needs Mode StoreFirst", false},
	{"gate", "Before", "Inbox.Before runs for messages that the gate then holds or drops", true},
}

func refusalOf(p pair) (refusal, bool) {
	for _, r := range refusals {
		if len(p) == 2 && strings.HasPrefix(p[0].name, r.one) && strings.HasPrefix(p[1].name, r.other) {
			return r, true
		}
	}
	return refusal{}, false
}

// mustRefuse expects that no message is handled, and an error that says why.
func (s *service) mustRefuse(t *testing.T, scenario inboxtest.Scenario, why refusal) {
	t.Helper()
	heard := &hearing{TB: t}
	if s.durable != nil {
		s.durable.MaxAttempts = 3 // there is an end to it
	}
	inboxtest.Replay(heard, scenario, "crash before call 1")
	assert.Zero(t, s.ran, "handlers ran")
	if !why.late {
		assert.Contains(t, heard.text(), "the service does not start")
		assert.Contains(t, heard.text(), why.text)
		return
	}
	told := strings.Join(s.errors(), "\n") // a process that dies has other errors as well
	assert.Contains(t, told, why.text)
}

// errors are those that the router got.
func (s *service) errors() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.failed))
}

// hearing keeps what would fail a test.
type hearing struct {
	testing.TB

	mu    sync.Mutex
	heard []string
}

func (h *hearing) Errorf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, fmt.Sprintf(format, args...))
}

func (h *hearing) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.heard, "\n")
}

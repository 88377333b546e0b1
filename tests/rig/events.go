package rig

import (
	"context"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
)

// Events is an observer and a logger of a Store. It records the events, and the log lines at Info
// and above. The zero value is ready to use.
type Events struct {
	told
	logged
}

// told holds events by the name of their kind.
type told struct {
	mu   sync.Mutex
	seen map[string][]inbox.Event
}

func (r *told) Observe(_ context.Context, e inbox.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string][]inbox.Event{}
	}
	kind := e.Kind.String()
	r.seen[kind] = append(r.seen[kind], e)
}

// Count returns the number of events of a kind.
func (r *Events) Count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen[kind])
}

// Last returns the last event of a kind, or an empty one if there was none.
func (r *Events) Last(kind string) inbox.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.seen[kind]; len(all) > 0 {
		return all[len(all)-1]
	}
	return inbox.Event{}
}

// All returns the events of a kind.
func (r *Events) All(kind string) []inbox.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]inbox.Event{}, r.seen[kind]...)
}

// Counts returns the number of events of each kind.
func (r *Events) Counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for kind, seen := range r.seen {
		counts[kind] = len(seen)
	}
	return counts
}

// logged is a watermill.LoggerAdapter.
type logged struct {
	writing sync.Mutex
	lines   []string
}

// Logs returns the logged lines.
func (r *Events) Logs() []string {
	r.writing.Lock()
	defer r.writing.Unlock()
	return append([]string{}, r.lines...)
}

// Said counts the logged lines that contain a text.
func (r *Events) Said(text string) (n int) {
	for _, line := range r.Logs() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *logged) log(text string) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.lines = append(l.lines, text)
}

func (l *logged) Error(msg string, err error, _ watermill.LogFields) {
	if err != nil {
		msg += ": " + err.Error()
	}
	l.log(msg)
}
func (l *logged) Info(msg string, _ watermill.LogFields)           { l.log(msg) }
func (l *logged) Debug(string, watermill.LogFields)                {}
func (l *logged) Trace(string, watermill.LogFields)                {}
func (l *logged) With(watermill.LogFields) watermill.LoggerAdapter { return l }

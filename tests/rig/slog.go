package rig

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Lines holds text that was written. It is safe for concurrent use.
type Lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write adds p.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// DefaultLog returns the lines of slog.Default from level on, until the test ends. The test must not run in parallel.
func DefaultLog(t testing.TB, level slog.Level) *Lines {
	t.Helper()
	lines := &Lines{}
	was, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: level})))
	t.Cleanup(func() {
		slog.SetDefault(was)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	return lines
}

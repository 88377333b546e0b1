package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace-go/millrace/inbox"
)

// watcher remembers what the inbox told.
type watcher struct {
	mu      sync.Mutex
	events  []inbox.Event
	changed chan struct{} // gets a token at each event
}

func newWatcher() *watcher { return &watcher{changed: make(chan struct{}, 1)} }

// Observe remembers e.
func (w *watcher) Observe(_ context.Context, e inbox.Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) count(kind inbox.Kind, consumer, uuid string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind && e.Consumer == consumer && (uuid == "" || e.UUID == uuid) {
			n++
		}
	}
	return n
}

// await returns when a message of a consumer has ended so.
func (w *watcher) await(ctx context.Context, kind inbox.Kind, consumer, uuid string) error {
	return w.until(ctx, 1, kind, consumer, uuid)
}

// awaitCount returns when so many messages of a consumer have.
func (w *watcher) awaitCount(ctx context.Context, n int, kind inbox.Kind, consumer string) error {
	return w.until(ctx, n, kind, consumer, "")
}

func (w *watcher) until(ctx context.Context, n int, kind inbox.Kind, consumer, uuid string) error {
	for w.count(kind, consumer, uuid) < n {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %q is not %s: %w", consumer, uuid, kind, ctx.Err())
		}
	}
	return nil
}

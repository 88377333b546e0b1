package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace-go/millrace/inbox"
)

// What the inbox can tell of a message.
const (
	completed = "completed"
	duplicate = "duplicate"
	parked    = "parked"
)

// watcher remembers what the inbox told.
type watcher struct {
	mu      sync.Mutex
	events  []inbox.Event
	kinds   []string
	changed chan struct{} // gets a token at each event
}

func newWatcher() *watcher { return &watcher{changed: make(chan struct{}, 1)} }

func (w *watcher) add(kind string, e inbox.Event) {
	w.mu.Lock()
	w.events, w.kinds = append(w.events, e), append(w.kinds, kind)
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) count(kind, consumer, uuid string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.events {
		if w.kinds[i] == kind && e.Consumer == consumer && (uuid == "" || e.UUID == uuid) {
			n++
		}
	}
	return n
}

// await returns when a message of a consumer has ended so.
func (w *watcher) await(ctx context.Context, kind, consumer, uuid string) error {
	return w.until(ctx, 1, kind, consumer, uuid)
}

// awaitCount returns when so many messages of a consumer have.
func (w *watcher) awaitCount(ctx context.Context, n int, kind, consumer string) error {
	return w.until(ctx, n, kind, consumer, "")
}

func (w *watcher) until(ctx context.Context, n int, kind, consumer, uuid string) error {
	for w.count(kind, consumer, uuid) < n {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %q is not %s: %w", consumer, uuid, kind, ctx.Err())
		}
	}
	return nil
}

func (w *watcher) ObserveCompleted(_ context.Context, e inbox.Event) { w.add(completed, e) }
func (w *watcher) ObserveDuplicate(_ context.Context, e inbox.Event) { w.add(duplicate, e) }
func (w *watcher) ObserveParked(_ context.Context, e inbox.Event)    { w.add(parked, e) }

package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
)

// deliveries counts those in flight.
type deliveries struct {
	inFlight atomic.Int64 // handlers, and stored messages without an answer
	stored   atomic.Int64 // of these, the stored messages
	closing  atomic.Bool
	idle     chan struct{} // gets a token when the last delivery ends after closing began
}

func (d *deliveries) init() { d.idle = make(chan struct{}, 1) }

// enter admits a delivery unless drain was called.
func (d *deliveries) enter() bool {
	d.inFlight.Add(1)
	if d.closing.Load() {
		d.leave()
		return false
	}
	return true
}

// enterStored admits a stored message until it is answered. A nil function says that drain was called.
func (d *deliveries) enterStored() (answered func()) {
	if !d.enter() {
		return nil
	}
	d.stored.Add(1)
	return func() {
		d.stored.Add(-1)
		d.leave()
	}
}

func (d *deliveries) leave() {
	if d.inFlight.Add(-1) == 0 && d.closing.Load() {
		select {
		case d.idle <- struct{}{}:
		default:
		}
	}
}

// drain admits no more deliveries and waits for those in flight. It returns an error when ctx ends before that.
func (d *deliveries) drain(ctx context.Context) error {
	d.closing.Store(true)
	for d.inFlight.Load() > 0 {
		select {
		case <-d.idle:
		case <-ctx.Done():
			return d.unfinished(ctx.Err())
		}
	}
	select { // another drain may wait too
	case d.idle <- struct{}{}:
	default:
	}
	return nil
}

// unfinished returns an error that says for what drain waited in vain.
func (d *deliveries) unfinished(cause error) error {
	stored := d.stored.Load()
	text := fmt.Sprintf("inbox: close: %d handlers are still running", max(d.inFlight.Load()-stored, 0))
	if stored > 0 {
		text += fmt.Sprintf(", and %d stored messages have no recorded answer", stored)
	}
	return fmt.Errorf("%s: %w", text, cause)
}

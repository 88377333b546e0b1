package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
)

// deliveries counts those in flight.
type deliveries struct {
	inFlight atomic.Int64
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
			return fmt.Errorf("inbox: close: %d handlers are still running: %w", d.inFlight.Load(), ctx.Err())
		}
	}
	select { // another drain may wait too
	case d.idle <- struct{}{}:
	default:
	}
	return nil
}

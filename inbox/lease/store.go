package lease

import (
	"context"
	"time"
)

// Key names what a lease is on. Two keys are the same if Consumer, Epoch and ID are.
type Key struct {
	Consumer string
	Epoch    int
	ID       string // any bytes, at most 128
	Source   string // describes the consumer's inbox.Key, for stores that notice when it changes
}

// Status says whether a key is free.
type Status int

// The status of a key, as Acquire found it.
const (
	Taken     Status = iota + 1 // the caller has it now
	Held                        // another holder has it, and Remaining left to confirm it
	Confirmed                   // its message was handled, and is remembered for Remaining
)

// State is the answer of [Store].Acquire.
type State struct {
	Status    Status
	Remaining time.Duration

	// Evicted counts the confirmed keys that the store forgot before their retention ended, to make
	// room for this one: copies of their messages are handled again. The inbox logs the first, and
	// reports each as inbox.KindEvicted.
	Evicted int
}

// Store keeps leases. All methods are safe for concurrent use, return within seconds, and measure
// time by the store's clock, not by the caller's. Each holder has a token, which is positive and
// never used twice.
//
// After an error that wraps inbox.ErrUnavailable, the inbox holds further deliveries back until the
// store answers again. If a method panics, the inbox lets go of the key in this process, and the
// panic reaches the router: after a panic of Acquire the key is free, after one of Confirm or
// Release it is taken until its lease ends. A panic in a heartbeat, or in a Confirm after the ack,
// is logged.
type Store interface {
	// Acquire takes key for token in one step if the key is free: if it was never taken, was
	// released, or its lease or its retention ran out.
	Acquire(ctx context.Context, key Key, token int64, lease time.Duration) (State, error)

	// Confirm records for the time of retention that the message of key was handled. It returns an
	// error that wraps inbox.ErrLeaseLost if token does not hold key any more.
	Confirm(ctx context.Context, key Key, token int64, retention time.Duration) error

	// Release frees key. If token does not hold it, Release does nothing.
	Release(ctx context.Context, key Key, token int64) error
}

// Extender is a [Store] that can extend its leases. Without it, a lease ends even while its holder
// still works.
type Extender interface {
	// Extend lets the lease end after lease from now. It returns an error that wraps
	// inbox.ErrLeaseLost if token does not hold key any more.
	Extend(ctx context.Context, key Key, token int64, lease time.Duration) error
}

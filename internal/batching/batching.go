// Package batching holds what middleware.Batch and package inbox both know of a batch: its limits, the
// error that names a message of it, and what observers are told.
package batching

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Limits bound a batch.
type Limits struct {
	Max      int           // messages
	MaxBytes int           // of payloads; the first message may have more
	Linger   time.Duration // how long the first message waits for others
}

// Try is a try to handle several messages at once, for observers.
type Try struct {
	Began      time.Time
	Deliveries []context.Context // of the messages
}

// Failed is the error of one message of a batch.
type Failed struct {
	Msg *message.Message
	Err error
}

func (f *Failed) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failed) Unwrap() error { return f.Err }

// Named returns the messages that err names. It returns none if err says of no message that it failed.
func Named(err error) (all []*message.Message) {
	switch wraps := err.(type) { //nolint:errorlint // level by level
	case *Failed:
		return []*message.Message{wraps.Msg}
	case interface{ Unwrap() error }:
		return Named(wraps.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range wraps.Unwrap() {
			all = append(all, Named(one)...)
		}
	}
	return all
}

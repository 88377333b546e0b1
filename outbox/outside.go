package outbox

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/steady"
)

// outside calls functions of the service: observers, the broker's publisher, the logger, the
// driver. It calls each in a goroutine of its own, so that a panic or runtime.Goexit in one does
// not end the relay.
type outside struct {
	log    watermill.LoggerAdapter
	panics atomic.Int64
}

func newOutside(logger watermill.LoggerAdapter) *outside {
	o := &outside{}
	o.log = steady.Apart(logger, func() { o.panics.Add(1) })
	return o
}

// Panics returns how often a function of the service panicked, or ended its goroutine, in the
// relay: an observer, the broker's publisher, the logger or the driver.
func (r *Relay) Panics() int64 { return r.panics.Load() }

// beside does work in a goroutine, and calls ended with its error or its panic.
func (o *outside) beside(what string, work func() error, ended func(error)) {
	go func() {
		returned, err := false, error(&panicError{what + " ended its goroutine"})
		defer func() { ended(err) }()
		defer func() {
			if !returned {
				err = o.panicked(what, recover())
			}
		}()
		err = work()
		returned = true
	}()
}

// await is beside for callers that wait.
func (o *outside) await(what string, work func() error) error {
	done := make(chan error, 1)
	o.beside(what, work, func(err error) { done <- err })
	return <-done
}

// errPanicked says that a goroutine ended before its work was done.
var errPanicked = errors.New("a panic")

// panicError is [errPanicked] with what ended the goroutine.
type panicError struct{ text string }

func (e *panicError) Error() string        { return e.text }
func (e *panicError) Is(target error) bool { return target == errPanicked } //nolint:errorlint // this is what Is does

// panicked logs and counts a panic, or runtime.Goexit where reason is nil, and returns it as an
// error.
func (o *outside) panicked(what string, reason any) error {
	o.panics.Add(1)
	err := &panicError{what + " ended its goroutine by runtime.Goexit"}
	if reason != nil {
		err = &panicError{fmt.Sprintf("%s panicked: %v", what, reason)}
	}
	o.log.Error("outbox: a function of the service panicked in the relay, which goes on", fmt.Errorf("%w\n%s", err, debug.Stack()), nil)
	return err
}

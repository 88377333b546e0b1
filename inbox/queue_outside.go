package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Functions of the service run in two kinds of goroutines. In a handler's goroutine, a panic
// continues once the delivery has freed all that it holds. In one of ours it would end the process,
// so it becomes an error if the function returns one, and else a log line.

// Call calls a function of the service in a goroutine of the queue, and reports whether the
// function returned. Call logs a panic, or a runtime.Goexit, and counts it in [Store.Panics].
func (q *Queue) Call(function func()) (returned bool) {
	defer func() {
		if r := recover(); !returned {
			q.store.panics.Add(1)
			q.store.log.Error("inbox: a function of the service panicked in the queue, which goes on", unreturned(r), q.fields())
		}
	}()
	function()
	return true
}

// describe returns the type and the version of a message, empty if Describe panics.
func (q *Queue) describe(msg *message.Message) (kind, version string) {
	q.Call(func() { kind, version = q.config.Describe(msg) })
	return kind, version
}

func (q *Queue) tellCollision(ctx context.Context, e Event) {
	q.Call(func() { q.store.observeCollision(ctx, e) })
}

// panicError is a panic of a function of the service.
type panicError struct {
	what  string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.what, e.value) }

// recovered, when deferred, turns a panic into an error that names the function of the service.
func recovered(what string, err *error) {
	if r := recover(); r != nil {
		*err = &panicError{what, r}
	}
}

// counted counts err in [Store.Panics] if it is a panic. It is for goroutines of ours.
func (s *Store) counted(err error) error {
	var p *panicError
	if errors.As(err, &p) {
		s.panics.Add(1)
	}
	return err
}

// sound returns err, an error of the service. If its methods panic, sound returns an error that
// describes it: a nil pointer, for instance, that was meant as no error.
func sound(err error) (usable error) {
	defer func() {
		if recover() != nil {
			usable = errors.New(fmt.Sprintf("an error of type %T whose methods panic: ", err) + fmt.Sprint(err))
		}
	}()
	ask(err)
	return err
}

// ask calls the methods of err and of all errors that it wraps.
func ask(err error) {
	if err == nil {
		return
	}
	_ = err.Error()
	_ = errors.Is(err, errPanic)
	switch wraps := err.(type) { //nolint:errorlint // level by level
	case interface{ Unwrap() error }:
		ask(wraps.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range wraps.Unwrap() {
			ask(one)
		}
	}
}

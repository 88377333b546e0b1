package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Functions of the service are called in two kinds of goroutines. In that of a handler a panic goes
// on its way, once all that the delivery holds is let go. In one of ours, where it would end the
// process, it is an error where the function returns one, and else logged.

// Call calls a function of the service's in a goroutine of the queue's, and reports whether it
// returned. A panic is logged and counted by [Store.Panics], and so is what ends the goroutine.
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

// describe asks for the type of a message. One for which Describe panics has none.
func (q *Queue) describe(msg *message.Message) (kind, version string) {
	q.Call(func() { kind, version = q.config.Describe(msg) })
	return kind, version
}

// tellCollision tells the observers of a collision.
func (q *Queue) tellCollision(ctx context.Context, e Event) {
	q.Call(func() { q.store.observeCollision(ctx, e) })
}

// panicError is made of the panic of a function of the service's.
type panicError struct {
	what  string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.what, e.value) }

// recovered makes an error of a panic of the function that is called so.
func recovered(what string, err *error) {
	if r := recover(); r != nil {
		*err = &panicError{what, r}
	}
}

// counted counts err, in a goroutine of ours, if it was made of a panic.
func (s *Store) counted(err error) error {
	var p *panicError
	if errors.As(err, &p) {
		s.panics.Add(1)
	}
	return err
}

// sound returns an error of the service's, or what can be said of it where its methods panic, as
// those of a nil pointer do that was meant as no error.
func sound(err error) (usable error) {
	defer func() {
		if recover() != nil {
			usable = errors.New(fmt.Sprintf("an error of type %T whose methods panic: ", err) + fmt.Sprint(err))
		}
	}()
	ask(err)
	return err
}

// ask calls the methods of err, and of all that it wraps.
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

package rabbitmq

import (
	"errors"
	"fmt"
	"runtime/debug"
)

var errExited = errors.New("a function of the config ended its goroutine by runtime.Goexit")

// outlive does work that calls functions of the user's config, and returns a panic or
// runtime.Goexit in them as an error: the one would end the process, the other a goroutine that
// the package needs.
func outlive(what string, work func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errExited
		defer func() {
			if r := recover(); r != nil {
				err = panicked(what, r)
			}
			done <- err
		}()
		err = work()
	}()
	return <-done
}

func panicked(what string, reason any) error {
	return fmt.Errorf("%s panicked: %v\n%s", what, reason, debug.Stack())
}

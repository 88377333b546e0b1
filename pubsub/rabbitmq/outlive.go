package rabbitmq

import (
	"errors"
	"fmt"
	"runtime/debug"
)

var errExited = errors.New("a function of the config ended its goroutine by runtime.Goexit")

// outlive does work, in which functions of the user's config are called, where a panic would end the process and
// runtime.Goexit a goroutine that others count on. Both become errors.
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

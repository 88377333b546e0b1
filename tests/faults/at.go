package faults

import (
	"context"
	"strings"
)

// At returns a function for a [Plan], which calls do for each call that contains part.
func At(part string, do func() error) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if strings.Contains(call, part) {
			return do()
		}
		return nil
	}
}

// Lose returns a function for a [Plan], by which each call that contains part is lost.
func Lose(part string) func(context.Context, string) error {
	return At(part, func() error { return ErrLost })
}

// Package flight lets a statement of ours say that nobody needs its result before the COMMIT. A driver that knows this
// package may then send it together with the COMMIT, in one flight; others run it at once.
package flight

import (
	"context"
	"errors"
)

// Late describes a statement that may be sent with the COMMIT.
type Late struct {
	What func() string // names the statement in an error of the COMMIT
	Rows int64         // how many rows it must change, or the transaction fails; zero if any number will do
}

// Named returns the What of a statement that always has the same name.
func Named(name string) func() string { return func() string { return name } }

type key struct{}

// With returns the context for a statement that l describes.
func With(ctx context.Context, l *Late) context.Context { return context.WithValue(ctx, key{}, l) }

// Of returns what describes the statement of ctx, nil if it must run at once.
func Of(ctx context.Context) *Late {
	l, _ := ctx.Value(key{}).(*Late)
	return l
}

// ErrRows says that a statement changed another number of rows than it must.
var ErrRows = errors.New("the statement changed another number of rows than it must")

// Error is what a COMMIT returns if a statement sent with it failed. Nothing was committed.
type Error struct {
	What string
	Err  error
}

func (e *Error) Error() string { return e.What + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Failed reports whether err says that a statement sent with the COMMIT failed, so that nothing was committed.
func Failed(err error) bool {
	var failed *Error
	return errors.As(err, &failed)
}

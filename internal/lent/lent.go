// Package lent tells a wrapper of a driver about a connection that a statement without a text borrows: what for, and with
// which result.
package lent

import "context"

// Use is what a connection is borrowed for.
type Use struct {
	Text string // the statement that runs on it
	Done bool   // it ran
	Err  error  // its result, which a wrapper may replace
}

type key struct{}

// With returns the context of the statement that borrows the connection for u.
func With(ctx context.Context, u *Use) context.Context { return context.WithValue(ctx, key{}, u) }

// Of returns what the statement of ctx borrows the connection for, nil if it borrows none.
func Of(ctx context.Context) *Use {
	u, _ := ctx.Value(key{}).(*Use)
	return u
}

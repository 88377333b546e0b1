// Package stack grows a goroutine's stack before it is needed.
package stack

import "runtime"

// Grow grows the stack for a delivery while it holds little. A router
// starts a goroutine for each message; without Grow its stack would run out twice deep inside the
// driver, and Go would copy all of it each time. Where the stack is large enough, Grow costs next to nothing.
//
//go:noinline
func Grow() {
	var room [5 << 10]byte
	runtime.KeepAlive(&room)
}

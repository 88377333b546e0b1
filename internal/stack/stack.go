// Package stack makes room on a goroutine's stack before it is needed.
package stack

import "runtime"

// Grow makes room for what a delivery needs, while there is little on the stack. A router
// starts a goroutine for each message; without this its stack runs out twice, deep inside the
// driver, and all that is on it is copied each time. The outermost middleware calls it; for
// those further in it costs next to nothing.
//
//go:noinline
func Grow() {
	var room [5 << 10]byte
	runtime.KeepAlive(&room)
}

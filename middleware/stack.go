package middleware

import "runtime"

// grow makes room on the goroutine's stack for what a delivery needs, while there is
// little on it. A router starts a goroutine for each message; without this its stack runs
// out twice, deep inside the driver, and all that is on it is copied each time.
//
//go:noinline
func grow() {
	var room [5 << 10]byte
	runtime.KeepAlive(&room)
}

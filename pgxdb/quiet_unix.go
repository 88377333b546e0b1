//go:build unix

package pgxdb

import (
	"errors"
	"net"
	"syscall"
)

// quiet reports whether the server has neither sent something nor closed the connection, as far as the operating
// system knows.
func quiet(c net.Conn) bool {
	if inner, wraps := c.(interface{ NetConn() net.Conn }); wraps { // TLS
		c = inner.NetConn()
	}
	socket, is := c.(syscall.Conn)
	if !is {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Control(func(fd uintptr) { // not Read, which waits while pgx reads in the background, as it does after a slow write
		var buffer [1]byte
		_, _, err := syscall.Recvfrom(int(fd), buffer[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	})
	return err == nil && silent
}

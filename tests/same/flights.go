package same

import (
	"context"
	"net"
	"sync/atomic"
)

// Counting returns a function that dials connections which count their flights: how often one is written to after it
// was read.
func Counting(flights *atomic.Int64) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		inner, err := new(net.Dialer).DialContext(ctx, network, address)
		return &counted{Conn: inner, flights: flights}, err
	}
}

type counted struct {
	net.Conn
	flights *atomic.Int64
	written atomic.Bool
}

func (c *counted) Write(b []byte) (int, error) {
	if !c.written.Swap(true) {
		c.flights.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.written.Store(false)
	return n, err
}

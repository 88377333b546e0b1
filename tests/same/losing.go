package same

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
)

// Losing is a pooler that loses the server at a COMMIT, and tells the client so in the server's place.
type Losing struct {
	Commit []byte      // the COMMIT as the driver sends it
	Says   []byte      // what the pooler sends then, before it closes the connection
	Done   func()      // waits until the server has committed
	Next   atomic.Bool // whether it loses the server at the next COMMIT
}

// Dial opens a connection through the pooler.
func (l *Losing) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	inner, err := new(net.Dialer).DialContext(ctx, network, address)
	return &losing{Conn: inner, pooler: l}, err
}

type losing struct {
	net.Conn
	pooler *Losing
	said   atomic.Pointer[bytes.Reader] // nil until the server is lost
}

func (c *losing) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.pooler.Commit) && c.pooler.Next.CompareAndSwap(true, false) {
		defer func() {
			c.pooler.Done()
			c.said.Store(bytes.NewReader(c.pooler.Says))
		}()
	}
	return c.Conn.Write(b)
}

func (c *losing) Read(b []byte) (int, error) {
	if said := c.said.Load(); said != nil {
		return said.Read(b)
	}
	return c.Conn.Read(b)
}

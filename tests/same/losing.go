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
	return &losing{Conn: inner, pooler: l, says: bytes.NewReader(l.Says), told: make(chan struct{})}, err
}

type losing struct {
	net.Conn
	pooler *Losing
	lost   atomic.Bool   // from then on the client hears nothing of the server
	told   chan struct{} // closed once it hears from the pooler
	says   *bytes.Reader
}

func (c *losing) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.pooler.Commit) && c.pooler.Next.CompareAndSwap(true, false) {
		c.lost.Store(true) // before the server answers: pgx reads beside a write that takes 15 ms
		defer close(c.told)
		defer c.pooler.Done()
	}
	return c.Conn.Write(b)
}

func (c *losing) Read(b []byte) (int, error) {
	if !c.lost.Load() {
		if n, err := c.Conn.Read(b); !c.lost.Load() { // else it is the answer to the COMMIT
			return n, err
		}
	}
	<-c.told
	return c.says.Read(b)
}

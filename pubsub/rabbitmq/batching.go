package rabbitmq

import (
	"net"
	"sync"
	"time"
)

// maxUnwritten is how much a [batchingConn] holds before writers wait.
const maxUnwritten = 256 << 10

// batchingConn collects what it is to write, and writes it in the background in one go: amqp091
// makes a system call for each message, and RabbitMQ reads each by itself.
type batchingConn struct {
	net.Conn
	ended chan struct{} // closed when the background writer has ended

	mu        sync.Mutex
	changed   *sync.Cond
	unwritten []byte
	closed    bool
	err       error
}

func newBatchingConn(conn net.Conn) *batchingConn {
	c := &batchingConn{Conn: conn, ended: make(chan struct{})}
	c.changed = sync.NewCond(&c.mu)
	go c.write()
	return c
}

// Write waits only while too much is unwritten. Its error may be that of an earlier Write.
func (c *batchingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unwritten) > maxUnwritten && c.err == nil && !c.closed {
		c.changed.Wait()
	}
	switch {
	case c.err != nil:
		return 0, c.err
	case c.closed:
		return 0, net.ErrClosed
	}
	if len(c.unwritten) == 0 {
		c.changed.Broadcast()
	}
	c.unwritten = append(c.unwritten, p...)
	return len(p), nil
}

func (c *batchingConn) write() {
	defer close(c.ended)
	var batch []byte
	for {
		c.mu.Lock()
		for len(c.unwritten) == 0 && !c.closed {
			c.changed.Wait()
		}
		if len(c.unwritten) == 0 {
			c.mu.Unlock()
			return
		}
		batch, c.unwritten = c.unwritten, batch[:0]
		c.changed.Broadcast()
		c.mu.Unlock()
		if err := c.writeNow(batch); err != nil {
			return
		}
	}
}

// writeNow writes to the connection, which a Dial function of the user may have made. After a
// failure it closes the connection, so that the reader notices, and everyone who waits for an
// answer.
func (c *batchingConn) writeNow(batch []byte) (err error) {
	err = errExited
	defer func() {
		if r := recover(); r != nil {
			err = panicked("the connection", r)
		}
		if err == nil {
			return
		}
		c.mu.Lock()
		c.err = err
		c.changed.Broadcast()
		c.mu.Unlock()
		defer func() { _ = recover() }() // err says what went wrong first
		_ = c.Conn.Close()
	}()
	_, err = c.Conn.Write(batch)
	return err
}

// Close writes what is left, for a second at most, and closes.
func (c *batchingConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second)) // it may be closed
	<-c.ended
	return c.Conn.Close()
}

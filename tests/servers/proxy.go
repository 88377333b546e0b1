package servers

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Wire forwards TCP connections to one address, and misbehaves on demand.
// Its methods may be called from any goroutine.
type Wire struct {
	t    testing.TB
	addr string

	mu       sync.Mutex
	target   string
	lag      time.Duration // for each piece of data
	listener net.Listener  // nil while cut
	links    map[*link]struct{}
	thawed   chan struct{} // closed unless frozen
	wg       sync.WaitGroup
}

// Proxy starts a proxy in front of target (host:port) that ends with t.
func Proxy(t testing.TB, target string) *Wire {
	t.Helper()
	p := &Wire{
		t: t, target: target, addr: local(freePort(t)),
		links: map[*link]struct{}{}, thawed: make(chan struct{}),
	}
	close(p.thawed)
	p.Mend()
	if p.listener == nil {
		t.FailNow()
	}
	t.Cleanup(func() {
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Before starts a [Proxy] in front of the server of a URI or DSN. It also returns that URI or DSN with the proxy's address.
func Before(t testing.TB, uri string) (wire *Wire, through string) {
	t.Helper()
	host := strings.LastIndex(uri, "@") + 1
	target := regexp.MustCompile(`[\w.-]+:\d+\b`).FindString(uri[host:])
	wire = Proxy(t, target)
	return wire, uri[:host] + strings.Replace(uri[host:], target, wire.addr, 1)
}

// Addr returns the host and port for clients, the same after every Mend.
func (p *Wire) Addr() string { return p.addr }

// Cut resets every connection and refuses new ones until [Wire.Mend].
func (p *Wire) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // there is no remedy
		p.listener = nil
	}
	for l := range p.links {
		l.reset()
	}
}

// Freeze stops forwarding and keeps the sockets: neither side gets data from the
// other, or learns that the other has closed. New connections are accepted and
// get nothing. Bytes that were on their way may still arrive.
func (p *Wire) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen() {
		p.thawed = make(chan struct{})
	}
}

// Thaw continues where [Wire.Freeze] stopped; nothing is lost.
func (p *Wire) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen() {
		close(p.thawed)
	}
}

// Slow delays each piece of data by lag, in both directions.
func (p *Wire) Slow(lag time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag = lag
}

// Aim sends new connections to another address.
func (p *Wire) Aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Mend undoes [Wire.Cut], [Wire.Freeze] and [Wire.Slow].
func (p *Wire) Mend() {
	p.t.Helper()
	p.Thaw()
	p.Slow(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Errorf("mend the proxy: %v", err)
		return
	}
	p.listener = l
	p.wg.Go(func() { p.accept(l) })
}

// Connections returns the number of open connections.
func (p *Wire) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *Wire) frozen() bool {
	select {
	case <-p.thawed:
		return false
	default:
		return true
	}
}

func (p *Wire) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.t.Errorf("proxy: %v", err)
			}
			return
		}
		p.wg.Go(func() { p.serve(conn, listener) })
	}
}

// serve forwards one connection until it ends.
func (p *Wire) serve(client net.Conn, from net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{client: client, ended: ctx.Done(), end: cancel}
	defer l.close()
	if !p.admit(l, from) {
		l.reset()
		return
	}
	defer p.forget(l)
	if !p.pass(l) {
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.aim())
	if err != nil {
		l.reset()
		return
	}
	if !l.attach(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(l, server, client) })
	both.Go(func() { p.forward(l, client, server) })
	both.Wait()
}

func (p *Wire) aim() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// admit registers l for [Wire.Cut], unless the proxy was cut after it accepted l.
func (p *Wire) admit(l *link, from net.Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != from {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Wire) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// forward copies one direction, including its end.
func (p *Wire) forward(l *link, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass(l) {
			return
		}
		if _, broken := to.Write(buf[:n]); broken != nil {
			l.reset()
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			closeWrite(to)
			return
		case err != nil:
			l.reset()
			return
		}
	}
}

// pass waits while the proxy is frozen and reports whether l is still open.
func (p *Wire) pass(l *link) bool {
	p.mu.Lock()
	thawed, lag := p.thawed, p.lag
	p.mu.Unlock()
	select {
	case <-thawed:
	case <-l.ended:
	}
	if lag > 0 {
		sleep(lag)
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// sleep is exact to about 0.1 ms. Go's own timers are late by up to 1 ms in a process that is idle.
func sleep(d time.Duration) {
	left := syscall.NsecToTimespec(d.Nanoseconds())
	for errors.Is(syscall.Nanosleep(&left, &left), syscall.EINTR) {
	}
}

// link is a client's connection and the one to the server.
type link struct {
	client net.Conn
	ended  <-chan struct{}
	end    context.CancelFunc

	mu     sync.Mutex
	server net.Conn // nil until connected
}

// attach adds the connection to the server, unless the link has ended.
func (l *link) attach(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended:
		_ = server.Close() // it was never used
		return false
	default:
		l.server = server
		return true
	}
}

// reset ends both connections by RST: unsent data is lost.
func (l *link) reset() {
	l.mu.Lock()
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, is := c.(*net.TCPConn); is {
			_ = tcp.SetLinger(0) // it may be closed already
		}
	}
	l.mu.Unlock()
	l.close()
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
	for _, c := range []net.Conn{l.client, l.server} {
		if c != nil {
			_ = c.Close() // it may be closed already
		}
	}
}

func closeWrite(c net.Conn) {
	if tcp, is := c.(*net.TCPConn); is {
		_ = tcp.CloseWrite() // it may be closed already
	}
}

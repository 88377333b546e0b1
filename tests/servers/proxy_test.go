package servers_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
)

func TestProxyForwardsToTheEnd(t *testing.T) {
	p := servers.Proxy(t, echo(t))
	conn := dial(t, p)
	big := make([]byte, 1<<20)
	go func() {
		_, _ = conn.Write(big) // a failure shows in what is read
		_ = conn.CloseWrite()
	}()
	back, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Len(t, back, len(big))
}

func TestProxyCutResetsAndRefusesUntilMended(t *testing.T) {
	p := servers.Proxy(t, echo(t))
	conn := dial(t, p)
	require.Equal(t, "one\n", say(t, conn, "one\n"))
	assert.Equal(t, 1, p.Connections())
	p.Cut()
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	assert.NotErrorIs(t, err, io.EOF, "a cut is not an orderly end")
	_, err = new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr())
	require.Error(t, err)
	p.Mend()
	assert.Equal(t, "two\n", say(t, dial(t, p), "two\n"))
}

func TestProxyFreezeKeepsSocketsAndLosesNothing(t *testing.T) {
	p := servers.Proxy(t, echo(t))
	old := dial(t, p)
	require.Equal(t, "one\n", say(t, old, "one\n"))
	p.Freeze()
	fresh := dial(t, p)
	for _, conn := range []*net.TCPConn{old, fresh} {
		_, err := conn.Write([]byte("two\n"))
		require.NoError(t, err)
		hearsNothing(t, conn)
	}
	p.Thaw()
	for _, conn := range []*net.TCPConn{old, fresh} {
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "two\n", line)
	}
}

func TestProxyCutEndsFrozenConnections(t *testing.T) {
	p := servers.Proxy(t, echo(t))
	conn := dial(t, p)
	require.Equal(t, "one\n", say(t, conn, "one\n"))
	p.Freeze()
	_, err := conn.Write([]byte("two\n"))
	require.NoError(t, err)
	p.Cut()
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	p.Mend()
	assert.Equal(t, "three\n", say(t, dial(t, p), "three\n"))
}

func TestProxySlow(t *testing.T) {
	t.Parallel()
	p := servers.Proxy(t, echo(t))
	conn := dial(t, p)
	const lag = 100 * time.Millisecond
	p.Slow(lag)
	began := time.Now()
	require.Equal(t, "hello", say(t, conn, "hello"))
	require.GreaterOrEqual(t, time.Since(began), 2*lag, "there and back")
}

func TestProxyAim(t *testing.T) {
	t.Parallel()
	one, other := servers.Proxy(t, echo(t)), servers.Proxy(t, echo(t))
	p := servers.Proxy(t, one.Addr())
	require.Equal(t, "hello", say(t, dial(t, p), "hello"))
	p.Aim(other.Addr())
	one.Cut()
	require.Equal(t, "hello", say(t, dial(t, p), "hello"))
}

// echo serves what it is sent, and returns its address.
func echo(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn) // a cut is the test's doing
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *servers.Wire) *net.TCPConn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	tcp, is := conn.(*net.TCPConn)
	require.True(t, is)
	return tcp
}

func say(t *testing.T, conn *net.TCPConn, line string) string {
	t.Helper()
	_, err := conn.Write([]byte(line))
	require.NoError(t, err)
	back := make([]byte, len(line))
	_, err = io.ReadFull(conn, back)
	require.NoError(t, err)
	return string(back)
}

func hearsNothing(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "got %v", err)
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
}

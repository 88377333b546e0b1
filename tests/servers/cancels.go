package servers

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Uncancelled returns an address of a [PgBouncer] for clients that send cancel requests: its own, or,
// if its version dies of them, that of a forwarder that drops them.
func Uncancelled(t testing.TB, pooler *Server) (addr string) {
	t.Helper()
	if diesOfCancels(t, pooler) {
		return withoutCancels(t, pooler.Addr())
	}
	return pooler.Addr()
}

// diesOfCancels reports whether this PgBouncer has version 1.18 to 1.20, which can exit with
// "server in bad state" at a cancel request. Clients send one when a context ends.
func diesOfCancels(t testing.TB, pooler *Server) bool {
	t.Helper()
	u, err := url.Parse(pooler.DSN())
	require.NoError(t, err)
	u.Path = "/pgbouncer"
	console, err := sqlx.Open("pgx", u.String()+"&default_query_exec_mode=simple_protocol")
	require.NoError(t, err)
	defer func() { assert.NoError(t, console.Close()) }()
	var version string
	require.NoError(t, console.GetContext(t.Context(), &version, `SHOW VERSION`))
	var major, minor int
	_, err = fmt.Sscanf(version, "PgBouncer %d.%d", &major, &minor)
	require.NoError(t, err, version)
	return major == 1 && minor >= 18 && minor <= 20
}

// withoutCancels returns an address that forwards everything to addr, except cancel requests.
func withoutCancels(t testing.TB, addr string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // ends the loop
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go forwardUncancelled(client, addr)
		}
	}()
	return listener.Addr().String()
}

func forwardUncancelled(client net.Conn, addr string) {
	const cancelRequest = 80877102 // in the place of the protocol version
	defer func() { _ = client.Close() }()
	first := make([]byte, 1<<14) // PgBouncer wants the first packet in one piece
	n, err := io.ReadAtLeast(client, first, 8)
	if err != nil || binary.BigEndian.Uint32(first[4:]) == cancelRequest {
		return
	}
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if _, err := server.Write(first[:n]); err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // either end ends both
			ended <- struct{}{}
		}()
	}
	<-ended
}

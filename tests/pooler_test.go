package tests_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestConformanceThroughPgBouncer runs the bodies of TestConformance on PostgreSQL behind a
// pooler in transaction mode that gives each transaction the next of its connections: all
// of them with exec, the mode of pgx to be used there, and with simple_protocol those in
// which processes meet. MariaDB and SQLite have no such pooler.
func TestConformanceThroughPgBouncer(t *testing.T) {
	pooler := servers.PgBouncer(t, testdb.On(t, "postgres").DSN,
		"server_round_robin = 1", "default_pool_size = 8", "stats_users = postgres")
	addr := pooler.Addr()
	if diesOfCancels(t, pooler) {
		addr = withoutCancels(t, addr)
	}
	for mode, bodies := range map[string][]testdb.Body{
		"exec":            conformanceBodies,
		"simple_protocol": slices.Concat(twinBodies, outcomeBodies, keyBodies),
	} {
		var ran atomic.Int32
		t.Run(mode, func(t *testing.T) {
			for _, body := range bodies {
				t.Run(body.Name, func(t *testing.T) {
					t.Parallel()
					direct := testdb.On(t, "postgres")
					db := direct.Open(t, testdb.Via(addr), testdb.Params("default_query_exec_mode", mode))
					result := "FAILED"
					defer func() {
						fmt.Printf("conformance: %s × postgres through PgBouncer, %s: %s\n", body.Name, mode, result)
					}()
					if body.Name == "a read-only database" {
						readOnlyBehindPooler(t, direct, db)
					} else {
						body.Run(t, db)
					}
					if t.Failed() {
						t.Logf("why: %s", body.Why)
						return
					}
					result = "ok"
					ran.Add(1)
				})
			}
		})
		assert.EqualValues(t, len(bodies), ran.Load(), "%s: a body did not run, or not to its end", mode)
	}
}

// diesOfCancels reports whether this PgBouncer is one of 1.18 to 1.20, which can end with
// "server in bad state" at a cancel request: a client sends one when a context ends.
func diesOfCancels(t *testing.T, pooler *servers.Server) bool {
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

// withoutCancels returns an address that forwards to addr all but cancel requests.
func withoutCancels(t *testing.T, addr string) string {
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
	const cancelRequest = 80877102 // where another client names its protocol's version
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

// readOnlyBehindPooler is the one body that is adapted: PgBouncer refuses its setting in a
// connection string, so the database has it.
func readOnlyBehindPooler(t *testing.T, direct, pooled *testdb.DB) {
	t.Helper()
	b := newBed(t, pooled)
	h := b.inbox(effect, on(b.process()))
	must(t, h, newMessage("x"))
	admin := &bed{T: t, db: direct}
	admin.exec(`DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() ||
		' SET default_transaction_read_only = on'; END $$`)
	admin.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	b.eventually("the setting is seen", func() bool {
		_, err := h(newMessage("x"))
		require.Error(t, err)
		return errors.Is(err, inbox.ErrReadOnly)
	})
}

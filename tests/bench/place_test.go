package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// place is where the measured database is: near, on this machine, or far, 0.5 ms away. Where it is
// far, the round trips of a message decide.
type place string

const (
	near place = "near"
	far  place = "0.5ms"
)

// distance is what a piece of data takes from here to a database that is far, and back again.
const distance = 500 * time.Microsecond

// nearAndFar runs body with a database of each place.
func nearAndFar(b *testing.B, body func(b *testing.B, db *testdb.DB, at place)) {
	b.Run(string(near), func(b *testing.B) { body(b, database(b), near) })
	b.Run(string(far), func(b *testing.B) { body(b, away(b, database(b)), far) })
}

// away returns db at a distance, for all who use its pool or its DSN.
func away(b *testing.B, db *testdb.DB) *testdb.DB {
	b.Helper()
	server, err := url.Parse(db.DSN)
	require.NoError(b, err)
	return db.Open(b, testdb.Via(wire(b, server.Host)), testdb.Pool(pool))
}

// wireTo is the variable by which a process learns what it is the wire to.
const wireTo = "MILLRACE_BENCH_WIRE_TO"

// wire starts a proxy in a process of its own and returns its address. In this one, the exact
// sleeps of the proxy would keep the processors from what is measured.
func wire(b *testing.B, target string) (addr string) {
	b.Helper()
	self, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), self, "-test.run=^$", "-test.bench=^BenchmarkWire$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), wireTo+"="+target, "GOMAXPROCS=64")
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // clients may have broken off
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, at, found := strings.Cut(lines.Text(), "wire at "); found {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return at
		}
	}
	require.Fail(b, "the process of the wire ended")
	return ""
}

// BenchmarkWire is what [wire] runs. It ends with its standard input.
func BenchmarkWire(b *testing.B) {
	target := os.Getenv(wireTo)
	if target == "" {
		b.Skip("other benchmarks run it")
	}
	proxy := servers.Proxy(b, target)
	proxy.Slow(distance)
	fmt.Printf("wire at %s\n", proxy.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// turns is how often each way is measured there.
func (p place) turns() int {
	if p == far {
		return turns()
	}
	return pick(7, 1)
}

// goal is the name of a goal there.
func (p place) goal(name string) string {
	if p == far {
		return name + "/" + string(p)
	}
	return name
}

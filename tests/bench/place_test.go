package bench_test

import (
	"net/url"
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
	wire := servers.Proxy(b, server.Host)
	wire.Slow(distance)
	return db.Open(b, testdb.Via(wire.Addr()), testdb.Pool(pool))
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

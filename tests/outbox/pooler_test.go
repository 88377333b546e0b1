package outbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// poolerBodies run behind a PgBouncer in transaction mode, by the mode of pgx that is used
// there.
var poolerBodies = map[string][]testdb.Body{
	"exec": slices.Concat(bodies, relayOrderBodies, relayEndBodies, relayBatchBodies, relayParkedBodies,
		inTxBodies, withTxBodies, noTxBodies, chunkBodies, commitBodies),
	"simple_protocol": slices.Concat(bodies, relayOrderBodies, chunkBodies),
}

// Behind a pooler that gives each transaction the next of its connections, publishers and
// relays do what they do elsewhere. MariaDB and SQLite have no such pooler.
func TestThroughPgBouncer(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	addr := newPooler(t)
	for mode, bodies := range poolerBodies {
		for _, body := range testdb.Sample(t, len(bodies)/5, bodies) {
			t.Run(mode+", "+body.Name, func(t *testing.T) {
				t.Parallel()
				body.Run(t, pooled(t, testdb.On(t, "postgres"), addr, mode))
				if t.Failed() {
					t.Logf("why: %s", body.Why)
				}
			})
		}
	}
}

// A relay there hears no notices. It finds that out, says so, and looks by itself.
func TestARelayBehindPgBouncerLooksByItself(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	p := newPost(t, db)
	p.slow(pooled(t, db, newPooler(t), "exec").DB)
	rig.Eventually(p, "it says that it hears nothing", func() bool {
		return p.log.has("notices from other processes do not reach this relay")
	})
	for range 3 {
		ids := p.send("orders", "", 1)
		committed := time.Now()
		p.broker.awaitAll(t, ids)
		assert.Less(t, time.Since(committed), 30*time.Second, "by the look once in a minute")
	}
}

// A notice that an earlier relay has left on each connection of the pool does not deceive the next.
func TestARelayBehindPgBouncerWaitsForItsOwnNotice(t *testing.T) {
	t.Parallel()
	const hearsNothing = "notices from other processes do not reach this relay"
	db := testdb.On(t, "postgres")
	bouncer := servers.PgBouncer(t, db.DSN, "default_pool_size = 1")
	pool := pooled(t, db, servers.Uncancelled(t, bouncer), "exec")
	pool.SetMaxIdleConns(10)
	first, second := newPost(t, db), newPost(t, db)
	relay := start(t, first.relayOn(pool.DB, first.broker, asItComes))
	rig.Eventually(t, "the first relay says so", func() bool { return first.log.has(hearsNothing) })
	require.NoError(t, relay.stop())

	var channel string
	var conns []*sqlx.Conn
	for range 10 {
		c, err := pool.Connx(t.Context())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	for _, c := range conns {
		require.NoError(t, c.GetContext(t.Context(), &channel, `SELECT pg_listening_channels()`))
		_, err := c.ExecContext(t.Context(), `NOTIFY `+channel)
		require.NoError(t, err)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	start(t, second.relayOn(pool.DB, second.broker, asItComes))
	rig.Eventually(t, "the second relay says so", func() bool { return second.log.has(hearsNothing) })
}

// newPooler starts a PgBouncer before the server of the tests, and returns its address.
func newPooler(t *testing.T) (addr string) {
	t.Helper()
	pooler := servers.PgBouncer(t, testdb.On(t, "postgres").DSN,
		"server_round_robin = 1", "default_pool_size = 8", "stats_users = postgres")
	return servers.Uncancelled(t, pooler)
}

func pooled(t *testing.T, db *testdb.DB, addr, mode string) *testdb.DB {
	t.Helper()
	return db.Open(t, testdb.Via(addr), testdb.Params("default_query_exec_mode", mode))
}

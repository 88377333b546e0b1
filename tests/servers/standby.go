package servers

import (
	"os"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// Pair is a PostgreSQL and a synchronous standby. The primary answers a commit only once both have
// it, so no answered commit is lost when the standby takes over.
type Pair struct {
	t                testing.TB
	primary, standby *Server
}

// PostgresPair runs a pair of t's own, with settings as for [Postgres].
func PostgresPair(t testing.TB, settings ...string) *Pair {
	t.Helper()
	settings = append(settings, "synchronous_standby_names=*")
	p := &Pair{t: t, primary: Postgres(t, settings...), standby: newPostgres(t, settings)}
	p.follow()
	t.Cleanup(p.standby.Kill)
	return p
}

// Primary returns the server that accepts writes, until the next [Pair.FailOver].
func (p *Pair) Primary() *Server { return p.primary }

// FailOver kills the primary and promotes the standby. The new primary answers no commit until
// [Pair.Rebuild] gives it a standby.
func (p *Pair) FailOver() {
	p.t.Helper()
	p.primary.Kill()
	db, err := sqlx.Connect("pgx", p.standby.DSN())
	require.NoError(p.t, err)
	var promoted bool
	require.NoError(p.t, db.Get(&promoted, `SELECT pg_promote()`))
	require.True(p.t, promoted, "the standby did not take over\n%s", p.standby.home.tail())
	require.NoError(p.t, db.Close())
	p.primary, p.standby = p.standby, p.primary
}

// Rebuild makes the killed server the standby of the new primary.
func (p *Pair) Rebuild() {
	p.t.Helper()
	p.follow()
}

// follow makes the standby a copy of the primary and waits until it follows.
func (p *Pair) follow() {
	p.t.Helper()
	h := p.standby.home
	require.NoError(p.t, os.RemoveAll(h.path("data")))
	h.do(program(p.t, "pg_basebackup", debianPostgres), "--dbname", p.primary.DSN(), "--pgdata", h.path("data"),
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
	p.standby.Start()
	db, err := sqlx.Connect("pgx", p.primary.DSN())
	require.NoError(p.t, err)
	require.Eventually(p.t, func() bool {
		var follows bool
		err := db.Get(&follows, `SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')`)
		return err == nil && follows
	}, time.Minute, 50*time.Millisecond, "the standby does not follow")
	require.NoError(p.t, db.Close())
}

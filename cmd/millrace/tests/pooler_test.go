package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestBehindAPooler: one in transaction mode, that refuses settings in the connection string.
func TestBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := servers.Postgres(t)
	bouncer := servers.PgBouncer(t, pg.DSN())
	s := newShop(t, testdb.At(t, "postgres", pg.DSN()))
	s.serve()
	pooled := s.db.Open(t, testdb.Via(bouncer.Addr())).DSN
	for _, args := range [][]string{
		{"status"}, {"list"}, {"list", "--groups"}, {"explain", id(20)}, {"check"}, {"outbox", "list"}, {"outbox", "shards"},
		{"retry", "4", "5", "--reason", "x", "--yes"}, {"discard", "7", "--reason", "x", "--yes"}, {"purge", "--yes"},
		{"retry", "--all-matching", "--consumer", "billing", "--reason", "x", "--yes"},
		{"outbox", "retry", "1", "--reason", "x", "--yes"}, {"pause", "billing", "--reason", "x", "--yes"}, {"migrate"},
	} {
		r := call(t, pooled, args...)
		assert.Zero(t, r.code, "%q: %s", args, r.err)
	}
}

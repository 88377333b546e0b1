package tests_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestConformanceThroughPgBouncer runs the bodies of TestConformance on PostgreSQL behind a
// pooler in transaction mode that gives each transaction the next of its connections: all
// of them with exec, the mode of pgx to be used there, and with simple_protocol those in
// which processes meet. MariaDB and SQLite have no such pooler.
func TestConformanceThroughPgBouncer(t *testing.T) {
	t.Parallel()
	// A server of its own: the pooler waits for 15 seconds where one has no connection left.
	server := servers.Postgres(t, "max_connections=200").DSN()
	pooler := servers.PgBouncer(t, testdb.At(t, "postgres", server).DSN,
		"server_round_robin = 1", "default_pool_size = 8", "stats_users = postgres")
	addr := servers.Uncancelled(t, pooler)
	for mode, bodies := range map[string][]testdb.Body{
		"exec":            conformanceBodies,
		"simple_protocol": slices.Concat(twinBodies, outcomeBodies, keyBodies),
	} {
		var ran atomic.Int32
		t.Run(mode, func(t *testing.T) {
			bodies = testdb.Sample(t, len(bodies)/5, bodies)
			for _, body := range bodies {
				t.Run(body.Name, func(t *testing.T) {
					t.Parallel()
					direct := testdb.At(t, "postgres", server)
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
	rig.Eventually(b, "the setting is seen", func() bool {
		err := rig.MustFail(t, h, newMessage("x"))
		return errors.Is(err, inbox.ErrReadOnly)
	})
}

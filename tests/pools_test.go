package tests_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	sending "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The bound of a pgxpool is not to be seen through database/sql: too many transactions would take all its
// connections, and handlers that use the pool beside wait for each other. Check says what to set.
func TestAPgxpoolBehindThePool(t *testing.T) {
	t.Parallel()
	const connections, messages = 4, 12
	b := newBed(t, testdb.On(t, "postgres"))
	config, err := pgxpool.ParseConfig(b.db.DSN)
	require.NoError(t, err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	db := sqlx.NewDb(stdlib.OpenDBFromPool(pool), "pgx")
	defer func() { assert.NoError(t, db.Close()) }()
	store := b.newStore(db, inbox.Config{})
	said := func() (about []string) {
		found := findings(t, store)
		for _, f := range found {
			if f.Subject == "pool" || strings.Contains(f.Remedy, "MaxConns of the pgxpool") {
				about = append(about, f.String())
			}
		}
		return about
	}
	require.Len(t, said(), 1)
	assert.Contains(t, said()[0], "db.SetMaxOpenConns")

	db.SetMaxOpenConns(connections)
	assert.Empty(t, said())
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		var one int
		if err := db.GetContext(msg.Context(), &one, `SELECT 1 FROM pg_sleep(0.05)`); err != nil {
			return nil, err
		}
		return effect(msg)
	}, on(store), func(i *millrace.Inbox) { i.Timeout = rig.Patience })
	var all sync.WaitGroup
	for range messages {
		all.Go(func() {
			_, err := h(newMessage("x"))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	assert.Equal(t, messages, b.effects())
}

// TestAMapperOfTheServiceConcernsItsOwnRows: whatever names a service has its pool give to columns, ours are found.
func TestAMapperOfTheServiceConcernsItsOwnRows(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	pool := b.db.Open(t)
	pool.MapperFunc(strings.ToUpper)
	store := b.newStore(pool.DB, inbox.Config{})
	must(t, b.inbox(effect, on(store)), newMessage("x"))
	ops, by := admin.New(store), admin.Operator{Name: "ada", Reason: "a rebuild"}
	tables, err := ops.Tables(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, tables)
	_, err = store.Purge(t.Context())
	require.NoError(t, err)
	require.NoError(t, ops.Forget(t.Context(), "billing", 0, by))
	out, err := sending.NewPublisher(pool.DB, sending.Config{})
	require.NoError(t, err)
	_, err = out.Backlog(t.Context(), sending.BacklogOptions{})
	require.NoError(t, err)
	relay, err := sending.NewRelay(pool.DB, new(rig.Publisher), sending.RelayConfig{})
	require.NoError(t, err)
	_, err = relay.RelayBatch(t.Context())
	require.NoError(t, err)
	layout, err := out.Shards(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, layout.Shards)
}

// TestConformanceThroughPgBouncer runs the bodies of TestConformance on PostgreSQL behind a
// pooler in transaction mode that gives each transaction the next of its connections: all
// of them with exec, the mode of pgx to be used there, and with simple_protocol those in
// which processes meet. MariaDB and SQLite have no such pooler.
func TestConformanceThroughPgBouncer(t *testing.T) {
	testdb.Turn(t, 1, seconds)
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
			bodies = testdb.Sample(t, len(bodies)/10, bodies)
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
	if pooled.Driver == "postgres" { // lib/pq overrides the setting
		rig.MustFail(t, b.inbox(effect, on(b.newStore(pooled.ReadOnly(t).DB, inbox.Config{}))), newMessage("x"), inbox.ErrReadOnly)
		return
	}
	admin := &bed{T: t, db: direct}
	admin.exec(`DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() ||
		' SET default_transaction_read_only = on'; END $$`)
	admin.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	rig.Eventually(b, "the setting is seen", func() bool {
		err := rig.Failure(t, h, newMessage("x"))
		return errors.Is(err, inbox.ErrReadOnly)
	})
}

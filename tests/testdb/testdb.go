// Package testdb gives each test a fresh database on PostgreSQL, MariaDB and
// SQLite, so that every behaviour that touches SQL is one body run on all three.
//
// [Each] runs a body on all of them, [On] on one, [Conformance] a whole table of
// bodies, and [DB.Open] opens a second pool on the same database, as a second
// process would. PostgreSQL and MariaDB are found by MILLRACE_TEST_POSTGRES and
// MILLRACE_TEST_MYSQL, which `eval "$(tests/services.sh)"` sets. Without them
// their subtests are skipped, or fail if MILLRACE_TEST_ALL is 1. MILLRACE_TEST_ONLY names the
// dialect, or the broker, of the only server that is tried.
package testdb

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/rig"
)

// DB is a pool on a database of one test's own. The pool is closed when the test that asked for
// it ends; then the database is dropped, or kept to be emptied for another test.
type DB struct {
	*sqlx.DB

	Dialect string // "postgres", "mysql" or "sqlite"
	Driver  string // what sql.Open calls the driver
	DSN     string // what the pool was opened with: enough for another process

	flavour flavour
	kept    *kept // if its connections are
}

// runner is *testing.T or *testing.B.
type runner[T any] interface {
	testing.TB
	Run(name string, body func(T)) bool
}

// Each runs body as the subtests "postgres", "mysql" and "sqlite", each on a
// fresh database as [On] makes it. It serves tests and benchmarks alike; those of a test run in
// parallel, and may begin after Each has returned.
func Each[T runner[T]](t T, body func(t T, db *DB), opts ...Option) {
	t.Helper()
	for _, s := range systems {
		t.Run(s.dialect, func(t T) {
			t.Helper()
			if p, able := any(t).(interface{ Parallel() }); able {
				p.Parallel()
			}
			body(t, On(t, s.dialect, opts...))
			if !t.Skipped() {
				ran(t, "other tests of every database", s.named())
			}
		})
	}
}

// On returns a fresh database of one dialect, which has the tables of Millrace under their
// usual names, unless [Empty] is given. It skips the test when that
// database's variable is unset, and fails it instead if MILLRACE_TEST_ALL is 1.
func On(t testing.TB, dialect string, opts ...Option) *DB {
	t.Helper()
	s := find(t, dialect)
	if !slices.Contains(systems, s) {
		t.Skipf("testdb: MILLRACE_TEST_ONLY leaves out %s", dialect)
	}
	admin, found := s.admin()
	if !found {
		Missing(t, dialect, `set `+s.env+`, or: eval "$(tests/services.sh)"`)
	}
	return s.open(t, admin, apply(opts).empty, opts)
}

// At returns an empty database of a server named by its DSN, such as one of package servers. Its
// user must be allowed to create databases. SQLite needs no DSN.
func At(t testing.TB, dialect, admin string, opts ...Option) *DB {
	t.Helper()
	return find(t, dialect).open(t, admin, true, opts)
}

func (s *system) open(t testing.TB, admin string, empty bool, opts []Option) *DB {
	t.Helper()
	rig.Own(t)
	began := time.Now()
	dsn, k := s.fresh(t, admin, empty)
	db := &DB{Dialect: s.dialect, Driver: s.tested(), DSN: dsn, flavour: s.flavour(t, admin), kept: k}
	t.Logf("testdb: a database in %v", time.Since(began))
	return db.Open(t, opts...)
}

func apply(opts []Option) settings {
	o := settings{pool: 10}
	for _, set := range opts {
		set(&o)
	}
	return o
}

// Open opens another pool on the same database, as a second process would. It
// starts from the DSN of db, so the options of db hold there too, except [Pool].
// The pool is closed when t ends.
func (db *DB) Open(t testing.TB, opts ...Option) *DB {
	t.Helper()
	o := apply(opts)
	o.flavour = db.flavour
	dsn, err := find(t, db.Dialect).extend(db.DSN, o)
	require.NoError(t, err)
	k := db.kept
	if !o.usual() {
		k = nil
	}
	pool, err := k.open(db.Driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() }) // a test may have cut its connections
	pool.SetMaxOpenConns(o.pool)
	pool.SetMaxIdleConns(o.pool)
	return &DB{DB: pool, Dialect: db.Dialect, Driver: db.Driver, DSN: dsn, flavour: db.flavour, kept: k}
}

// Disconnect closes the connections of db that are idle.
func (db *DB) Disconnect() {
	db.SetMaxIdleConns(0)
	db.kept.forget()
}

// ReadOnly opens another pool, on which the database accepts no writes.
func (db *DB) ReadOnly(t testing.TB) *DB {
	t.Helper()
	if db.Driver == "postgres" { // lib/pq begins each transaction READ WRITE; a standby refuses the writes themselves
		db.Do(t, `DO $do$
			DECLARE of TEXT;
			BEGIN
				CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $f$
					BEGIN RAISE 'cannot execute % in a read-only transaction', TG_OP USING ERRCODE = '25006'; END $f$;
				FOR of IN SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
					EXECUTE 'CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON ' || of ||
						' FOR EACH STATEMENT EXECUTE FUNCTION refuse()';
				END LOOP;
			END $do$`)
		t.Cleanup(func() { db.Do(t, `DROP FUNCTION refuse() CASCADE`) })
		return db.Open(t)
	}
	return db.Open(t, map[string]Option{
		"postgres": Params("default_transaction_read_only", "on"),
		"mysql":    Params("tx_read_only", "1"),
		"sqlite":   Params("_pragma", "query_only(1)"),
	}[db.Dialect])
}

// Missing ends a test that lacks what it needs: a skip that says how to get it,
// or a failure if MILLRACE_TEST_ALL is 1.
func Missing(t testing.TB, what, remedy string) {
	t.Helper()
	if All() {
		t.Fatalf("%s is missing and MILLRACE_TEST_ALL=1 forbids a skip: %s", what, remedy)
	}
	t.Skipf("%s is missing: %s", what, remedy)
}

// All reports whether MILLRACE_TEST_ALL=1 turns skips into failures.
func All() bool { return os.Getenv("MILLRACE_TEST_ALL") == "1" }

// Long reports whether MILLRACE_TEST_LONG=1 asks for what takes minutes, as make stress does.
func Long() bool { return os.Getenv("MILLRACE_TEST_LONG") == "1" }

// Rounds is how often a test does something: usual times, and long times where [Long] is.
func Rounds(usual, long int) int {
	if Long() {
		return long
	}
	return usual
}

func find(t testing.TB, dialect string) *system {
	t.Helper()
	for _, s := range all {
		if s.dialect == dialect {
			return s
		}
	}
	t.Fatalf("testdb: unknown dialect %q", dialect)
	return nil
}

// Overlap lets n tests run in parallel, unless -parallel says how many. To be called
// by TestMain of a package whose tests wait for databases more than they compute.
// PostgreSQL takes 100 connections by default, and go test runs several packages.
func Overlap(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // it is a number
	}
}

// With returns a body for [Each], or a [Body], that stands on what bed makes of a database.
func With[B any](bed func(*testing.T, *DB) B, body func(*testing.T, B)) func(*testing.T, *DB) {
	return func(t *testing.T, db *DB) {
		t.Helper()
		body(t, bed(t, db))
	}
}

// Do carries out a statement, whose placeholders are question marks on every database. If the server
// ends it for a deadlock with what runs beside the test, Do carries it out again.
func (db *DB) Do(t testing.TB, query string, args ...any) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	_, err := db.ExecContext(ctx, db.Rebind(query), args...)
	for begun := time.Now(); dialect.Classify(err) == dialect.Contention && time.Since(begun) < 30*time.Second; {
		_, err = db.ExecContext(ctx, db.Rebind(query), args...)
	}
	require.NoError(t, err, query)
}

// Count returns the number that query selects. Its placeholders are those of [DB.Do].
func (db *DB) Count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.GetContext(context.WithoutCancel(t.Context()), &n, db.Rebind(query), args...), query)
	return n
}

// Waiting counts the statements that wait for a lock. On MySQL and MariaDB it counts those that run and contain part:
// INNODB_TRX would tell a lock wait, but is read anew only after a rest of 0.1 s.
func (db *DB) Waiting(t testing.TB, part string) int {
	t.Helper()
	query := `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`
	if db.Dialect == "mysql" {
		query = `SELECT COUNT(*) FROM ` + db.Processes() + ` WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE '%` + part + `%'`
	}
	return db.Count(t, query)
}

// UntilWaiting returns when n statements are [DB.Waiting], and at once on SQLite, which has no way to tell.
func (db *DB) UntilWaiting(t testing.TB, n int, part string) {
	t.Helper()
	if db.Dialect != "sqlite" {
		rig.Eventually(t, fmt.Sprintf("%d statements wait for a lock", n), func() bool { return db.Waiting(t, part) >= n })
	}
}

// CutWait waits until a statement is [DB.Waiting], and has the server end it, as a limit such as statement_timeout does.
func (db *DB) CutWait(t testing.TB, part string) {
	t.Helper()
	db.UntilWaiting(t, 1, part)
	if db.Dialect == "postgres" {
		db.Do(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
		return
	}
	id := db.Count(t, `SELECT MIN(ID) FROM `+db.Processes()+` WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE '%`+part+`%'`)
	db.Do(t, fmt.Sprint("KILL QUERY ", id))
}

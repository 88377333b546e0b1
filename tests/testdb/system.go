package testdb

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // registers "sqlite"
)

// system is what differs between the databases.
type system struct {
	dialect string
	driver  string // of the administrator, and of the tests unless others has another one
	env     string // names the administrator's DSN; empty where none is needed
	server  *server
	// extend applies the options to a DSN.
	extend func(dsn string, o settings) (string, error)
}

// server is how its databases are made, emptied and told from each other, by name.
type server struct {
	named  func(admin, name string) (dsn string, err error)
	list   string // of the databases whose names are like an argument
	create func(name string) string
	drop   func(name string) []string // once those who are connected to it are gone

	lock, tryLock, unlock string // of a name, by a session

	// keeps reports whether the connections to a database outlive a test.
	keeps func(context.Context, *sqlx.Conn) (bool, error)
	// renew drops the tables of a test, empties those of Millrace that have been written, and returns the shape. It ends
	// other sessions than those that are kept.
	renew func(ctx context.Context, db *sqlx.DB, kept []int32) (shape string, err error)
	// shape is all that a test could leave in a database that is empty.
	shape func(context.Context, *sqlx.DB) (string, error)
}

// others are the drivers of the tests in place of the usual ones, by dialect. Only the files that make test-drivers lays
// over this package fill it.
var others = map[string]string{}

var all = []*system{
	{
		dialect: "postgres", driver: "pgx", env: "MILLRACE_TEST_POSTGRES", extend: extendPostgres,
		server: &server{
			named:   namedPostgres,
			list:    "SELECT datname FROM pg_database WHERE datname LIKE $1",
			create:  func(name string) string { return "CREATE DATABASE " + name + " TEMPLATE template0" },
			drop:    dropPostgres,
			lock:    "SELECT TRUE FROM pg_advisory_lock(hashtextextended($1, 0))",
			tryLock: "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
			unlock:  "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
			keeps:   keepsPostgres,
			renew:   renewPostgres,
			shape:   shapePostgres,
		},
	},
	{
		dialect: "mysql", driver: "mysql", env: "MILLRACE_TEST_MYSQL", extend: extendMySQL,
		server: &server{
			named:   namedMySQL,
			list:    "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE ?",
			create:  func(name string) string { return "CREATE DATABASE " + name + " CHARACTER SET utf8mb4" },
			drop:    dropMySQL,
			lock:    "SELECT GET_LOCK(?, 600)",
			tryLock: "SELECT GET_LOCK(?, 0)",
			unlock:  "DO RELEASE_LOCK(?)",
			keeps:   func(context.Context, *sqlx.Conn) (bool, error) { return false, nil },
			renew:   renewMySQL,
			shape:   shapeMySQL,
		},
	},
	{dialect: "sqlite", driver: "sqlite", extend: extendSQLite},
}

// tested is the driver that tests get.
func (s *system) tested() string {
	return cmp.Or(others[s.dialect], s.driver)
}

// named is the dialect, with the driver where it is another than usual.
func (s *system) named() string {
	if driver := s.tested(); driver != s.driver {
		return s.dialect + " by the driver " + driver
	}
	return s.dialect
}

// systems are those of all, or the one that MILLRACE_TEST_ONLY names: the tests of the others are left out. It names
// a broker as well, whose tests need databases.
var systems = func() []*system {
	only := os.Getenv("MILLRACE_TEST_ONLY")
	for _, s := range all {
		if s.dialect == only {
			return []*system{s}
		}
	}
	return all
}()

func (s *system) admin() (dsn string, found bool) {
	if s.env == "" {
		return "", true
	}
	dsn = os.Getenv(s.env)
	return dsn, dsn != ""
}

// fresh makes a database that goes away with t, and returns its DSN, and its connections if they are
// kept. It has nothing in it, or the tables of Millrace.
func (s *system) fresh(t testing.TB, admin string, empty bool) (dsn string, k *kept) {
	t.Helper()
	switch {
	case s.server == nil:
		return createSQLite(t, empty), nil
	case !empty:
		return shelfOf(s, admin).take(t)
	}
	name := fmt.Sprintf("millrace_test_%d_%s", os.Getpid(), strings.ToLower(rand.Text()[:10]))
	require.NoError(t, execute(t.Context(), s.driver, admin, s.server.create(name)))
	t.Cleanup(func() { // the test may have killed the server on purpose
		if err := execute(context.WithoutCancel(t.Context()), s.driver, admin, s.server.drop(name)...); err != nil {
			t.Logf("testdb: %v", err)
		}
	})
	dsn, err := s.server.named(admin, name)
	require.NoError(t, err)
	return dsn, nil
}

func namedPostgres(admin, name string) (string, error) {
	u, err := url.Parse(admin)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func dropPostgres(name string) []string {
	return []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"}
}

func extendPostgres(dsn string, o settings) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	u.Host = cmp.Or(o.via, u.Host)
	q := u.Query()
	if o.frozen != nil {
		q.Set("idle_in_transaction_session_timeout", milliseconds(o.frozen.idle))
		q.Set("lock_timeout", milliseconds(o.frozen.lock))
	}
	for _, p := range o.params {
		if p[0] == "default_query_exec_mode" && others["postgres"] == "postgres" {
			p = [2]string{"binary_parameters", "yes"} // so lib/pq sends no statement that another connection would lack
		}
		q.Set(p[0], p[1])
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes a plus for a plus
	return u.String(), nil
}

func namedMySQL(admin, name string) (string, error) {
	cfg, err := mysql.ParseDSN(admin)
	if err != nil {
		return "", err
	}
	cfg.DBName = name
	return cfg.FormatDSN(), nil
}

// dropMySQL ends the transactions that are open in a database: DROP would wait for their locks.
func dropMySQL(name string) []string {
	return []string{disconnect + name, "SET SESSION lock_wait_timeout = 10", "DROP DATABASE IF EXISTS " + name}
}

// disconnect stands before the name of a database, in what [execute] is given: see disconnectMySQL.
const disconnect = "disconnect "

func extendMySQL(dsn string, o settings) (string, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	cfg.Addr = cmp.Or(o.via, cfg.Addr)
	q := url.Values{}
	if others["mysql"] == "mysqldb" {
		q.Set("multiStatements", "true")
		q.Set("interpolateParams", "true")
	}
	if o.frozen != nil {
		q.Set(o.flavour.variable("idle_write_transaction_timeout"), seconds(o.frozen.idle))
		q.Set("innodb_lock_wait_timeout", seconds(o.frozen.lock))
	}
	for _, p := range o.params {
		q.Set(o.flavour.variable(p[0]), p[1])
	}
	return withQuery(cfg.FormatDSN(), q.Encode()), nil
}

func createSQLite(t testing.TB, empty bool) string {
	t.Helper()
	file := url.URL{Path: filepath.Join(folder(t), "millrace.db")}
	if !empty {
		content, err := sqliteTemplate()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file.Path, content, 0o600))
	}
	dsn := "file:" + file.EscapedPath() + "?_txlock=immediate"
	for _, p := range []string{"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"} {
		dsn += "&" + pragma(p)
	}
	return dsn
}

// folder is t.TempDir for a database: closing a pool does not wait for a connection that is being
// opened, which then makes files in a folder that is being removed.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "millrace-test-")
	require.NoError(t, err)
	t.Cleanup(func() {
		gone := func() bool { return os.RemoveAll(dir) == nil }
		assert.Eventually(t, gone, patience, 10*time.Millisecond, "%s cannot be removed", dir)
	})
	return dir
}

// pragma is a parameter of a DSN for the driver that tests get, from name(value).
func pragma(p string) string {
	if others["sqlite"] != "sqlite3" {
		return "_pragma=" + p
	}
	name, value, _ := strings.Cut(strings.TrimSuffix(p, ")"), "(")
	return "_" + name + "=" + value
}

func extendSQLite(dsn string, o settings) (string, error) {
	for _, p := range o.params {
		if p[0] != "_pragma" {
			return "", fmt.Errorf("testdb: SQLite takes _pragma alone, not %s", p[0])
		}
		dsn += "&" + pragma(p[1])
	}
	return dsn, nil
}

func withQuery(dsn, query string) string {
	switch {
	case query == "":
		return dsn
	case strings.Contains(dsn, "?"):
		return dsn + "&" + query
	default:
		return dsn + "?" + query
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

func seconds(d time.Duration) string {
	return fmt.Sprint(int64((d + time.Second - 1) / time.Second))
}

// execute runs statements on one connection of their own.
func execute(ctx context.Context, driver, dsn string, statements ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, s := range statements {
		if database, found := strings.CutPrefix(s, disconnect); found {
			if err := disconnectMySQL(ctx, conn, database); err != nil {
				return err
			}
			continue
		}
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

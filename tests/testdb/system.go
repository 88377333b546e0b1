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
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // registers "sqlite"
)

// system is what differs between the databases.
type system struct {
	dialect string
	driver  string
	env     string // names the administrator's DSN; empty where none is needed

	// create makes a database that goes away with t, and returns its DSN. It has nothing in it,
	// or the tables of Millrace.
	create func(t testing.TB, admin string, empty bool) string
	// extend applies the options to a DSN.
	extend func(dsn string, o settings) (string, error)
}

var systems = []*system{
	{
		dialect: "postgres", driver: "pgx", env: "MILLRACE_TEST_POSTGRES",
		create: createPostgres, extend: extendPostgres,
	},
	{
		dialect: "mysql", driver: "mysql", env: "MILLRACE_TEST_MYSQL",
		create: createMySQL, extend: extendMySQL,
	},
	{
		dialect: "sqlite", driver: "sqlite",
		create: createSQLite, extend: extendSQLite,
	},
}

func (s *system) admin() (dsn string, found bool) {
	if s.env == "" {
		return "", true
	}
	dsn = os.Getenv(s.env)
	return dsn, dsn != ""
}

func createPostgres(t testing.TB, admin string, empty bool) string {
	t.Helper()
	u, err := url.Parse(admin)
	require.NoError(t, err)
	name := freshName()
	template := "template0"
	if !empty {
		template = postgresTemplate(t, admin)
	}
	execute(t, "pgx", admin, "CREATE DATABASE "+name+" TEMPLATE "+template)
	dropLater(t, "pgx", admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	u.Path = "/" + name
	return u.String()
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
		q.Set(p[0], p[1])
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes a plus for a plus
	return u.String(), nil
}

func createMySQL(t testing.TB, admin string, empty bool) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(admin)
	require.NoError(t, err)
	name := freshName()
	execute(t, "mysql", admin, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4")
	// A transaction left open would make DROP wait for its metadata lock. A connection may be
	// gone (1094) before it is killed.
	dropLater(t, "mysql", admin,
		"SET SESSION lock_wait_timeout = 10",
		"/*M! BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; FOR c IN (SELECT id FROM information_schema.processlist"+
			" WHERE db = '"+name+"') DO KILL c.id; END FOR; END */ /*!80000 DO 0 */",
		"DROP DATABASE IF EXISTS "+name)
	cfg.DBName = name
	if !empty {
		migrate(t, &DB{Dialect: "mysql", Driver: "mysql", DSN: cfg.FormatDSN()})
	}
	return cfg.FormatDSN()
}

func extendMySQL(dsn string, o settings) (string, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	cfg.Addr = cmp.Or(o.via, cfg.Addr)
	q := url.Values{}
	if o.frozen != nil {
		q.Set("idle_write_transaction_timeout", seconds(o.frozen.idle))
		q.Set("innodb_lock_wait_timeout", seconds(o.frozen.lock))
	}
	for _, p := range o.params {
		q.Set(p[0], p[1])
	}
	return withQuery(cfg.FormatDSN(), q.Encode()), nil
}

func createSQLite(t testing.TB, _ string, empty bool) string {
	t.Helper()
	// Go puts a # in the folder of a subtest whose name is taken; a URI ends there.
	file := url.URL{Path: filepath.Join(t.TempDir(), "millrace.db")}
	if !empty {
		content, err := sqliteTemplate()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file.Path, content, 0o600))
	}
	return "file:" + file.EscapedPath() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(FULL)&_txlock=immediate"
}

func extendSQLite(dsn string, o settings) (string, error) {
	q := url.Values{}
	for _, p := range o.params {
		q.Add(p[0], p[1])
	}
	return withQuery(dsn, q.Encode()), nil
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

func freshName() string {
	return fmt.Sprintf("millrace_test_%d_%s", os.Getpid(), strings.ToLower(rand.Text()[:10]))
}

func execute(t testing.TB, driver, dsn string, statements ...string) {
	t.Helper()
	require.NoError(t, tryExecute(t.Context(), driver, dsn, statements...))
}

// dropLater only logs an error: the test may have killed the server on purpose.
func dropLater(t testing.TB, driver, dsn string, statements ...string) {
	t.Cleanup(func() {
		began := time.Now()
		if err := tryExecute(context.WithoutCancel(t.Context()), driver, dsn, statements...); err != nil {
			t.Logf("testdb: %v", err)
		}
		t.Logf("testdb: dropped a database in %v", time.Since(began))
	})
}

func tryExecute(ctx context.Context, driver, dsn string, statements ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
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
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

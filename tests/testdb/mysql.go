package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// flavour tells the servers of the dialect "mysql" apart.
type flavour struct {
	mysql     bool     // MySQL's own, not MariaDB
	variables []string // those of renamed that it knows
}

// renamed are variables by the names that MariaDB 10.11 has for them, and what stands for them on other servers: the
// first that a server knows. MySQL has no timeout of transactions, but of idle connections.
var renamed = map[string][]string{
	"tx_isolation":                   {"transaction_isolation", "tx_isolation"},
	"tx_read_only":                   {"transaction_read_only", "tx_read_only"},
	"idle_write_transaction_timeout": {"idle_write_transaction_timeout", "wait_timeout"},
}

var flavours sync.Map // by the administrator's DSN

func (s *system) flavour(t testing.TB, admin string) flavour {
	t.Helper()
	if s.dialect != "mysql" {
		return flavour{}
	}
	if known, found := flavours.Load(admin); found {
		return known.(flavour) //nolint:forcetypeassert // nothing else is stored
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	db, err := sql.Open(s.driver, admin)
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	var version string
	require.NoError(t, db.QueryRowContext(ctx, `SELECT version()`).Scan(&version))
	f := flavour{mysql: !strings.Contains(version, "MariaDB")}
	for _, names := range renamed {
		for _, name := range names {
			var value any
			if db.QueryRowContext(ctx, `SELECT @@`+name).Scan(&value) == nil {
				f.variables = append(f.variables, name)
			}
		}
	}
	flavours.Store(admin, f)
	return f
}

// variable is what the server calls a variable that MariaDB 10.11 calls by name.
func (f flavour) variable(name string) string {
	for _, other := range renamed[name] {
		if slices.Contains(f.variables, other) {
			return other
		}
	}
	return name
}

// Variable is what the server calls a variable that MariaDB 10.11 calls by name: the servers of the dialect "mysql" differ.
// [Params] translates by itself.
func (db *DB) Variable(name string) string { return db.flavour.variable(name) }

// MySQL reports whether the server is MySQL's own, not MariaDB.
func (db *DB) MySQL() bool { return db.flavour.mysql }

// Processes is the table of what a server of the dialect "mysql" does: id, db, command, info. On MySQL the one of that name
// ends a statement at the first byte that is no text.
func (db *DB) Processes() string {
	if !db.MySQL() {
		return "information_schema.processlist"
	}
	return `(SELECT t.processlist_id AS id, t.processlist_db AS db, t.processlist_command AS command, s.sql_text AS info
		FROM performance_schema.threads t JOIN performance_schema.events_statements_current s USING (thread_id)
		WHERE s.end_event_id IS NULL) processes`
}

// disconnectMySQL ends what is connected to a database, so that nothing waits for its locks. A connection may be gone
// before it is killed.
func disconnectMySQL(ctx context.Context, conn sqlConn, database string) error {
	rows, err := conn.QueryContext(ctx, `SELECT id FROM /*M! information_schema. */ /*!80022 performance_schema. */ processlist
		WHERE id <> CONNECTION_ID() AND db = ?`, database)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	const gone = 1094
	for _, id := range ids {
		var refused *mysql.MySQLError
		if _, err := conn.ExecContext(ctx, fmt.Sprint("KILL ", id)); err != nil && (!errors.As(err, &refused) || refused.Number != gone) {
			return fmt.Errorf("kill %d: %w", id, err)
		}
	}
	return nil
}

// sqlConn is *sql.DB and *sql.Conn.
type sqlConn interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

package testdb

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// schema is Millrace's, under its usual names.
func schema(name string) *dialect.Dialect {
	return dialect.For(name, dialect.Names{Prefix: dialect.DefaultPrefix})
}

// migrate gives a database the tables of Millrace.
func migrate(t testing.TB, db *DB) {
	t.Helper()
	pool, err := sqlx.Open(db.Driver, db.DSN)
	require.NoError(t, err)
	defer func() { _ = pool.Close() }()
	require.NoError(t, schema(db.Dialect).Migrate(t.Context(), pool))
}

// sqliteTemplate is the file of a database with the tables.
var sqliteTemplate = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "millrace-template-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "template.db")
	pool, err := sqlx.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	err = schema(dialect.SQLiteName).Migrate(context.Background(), pool)
	if err := errors.Join(err, pool.Close()); err != nil { // which writes the log into the file
		return nil, err
	}
	return os.ReadFile(file)
})

// postgresTemplate names the database with the tables on a server. The first process of a
// schema makes it; it stays for the others.
func postgresTemplate(t testing.TB, admin string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(schema(dialect.PostgresName).Schema()))
	name := fmt.Sprintf("millrace_template_%x", sum[:6])
	if _, known := postgresTemplates.Load(admin); known {
		return name
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := sql.Open("pgx", admin)
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	conn, err := db.Conn(ctx)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }() // and with it goes the lock
	_, err = conn.ExecContext(ctx, `SELECT pg_advisory_lock(7269616)`)
	require.NoError(t, err)
	var there bool
	require.NoError(t, conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there))
	if !there {
		making := freshName() // until it is whole
		_, err = conn.ExecContext(ctx, "CREATE DATABASE "+making+" TEMPLATE template0")
		require.NoError(t, err)
		u, err := url.Parse(admin)
		require.NoError(t, err)
		u.Path = "/" + making
		migrate(t, &DB{Dialect: dialect.PostgresName, Driver: "pgx", DSN: u.String()})
		_, err = conn.ExecContext(ctx, "ALTER DATABASE "+making+" RENAME TO "+name)
		require.NoError(t, err)
	}
	postgresTemplates.Store(admin, true)
	return name
}

// postgresTemplates has the servers on which this process has seen the template.
var postgresTemplates sync.Map

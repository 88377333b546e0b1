package engine_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/testdb"
)

// other is a server that lacks something: it gets other statements than the ones that are sent.
type other struct {
	// rewrite returns what the server gets for a statement on a connection, which are numbered.
	rewrite func(connection int64, query string) string

	level    sql.IsolationLevel // of every transaction, unless it is 0
	commits  bool               // a ROLLBACK commits
	prepared func(ctx context.Context, prefix string) error

	driver      driver.Driver
	dsn         string
	connections atomic.Int64
}

func (o *other) over(db *testdb.DB) *sqlx.DB {
	o.driver, o.dsn = db.DB.Driver(), db.DSN
	pool := sqlx.NewDb(sql.OpenDB(o), db.DriverName())
	pool.SetMaxOpenConns(8)
	return pool
}

func (o *other) Connect(context.Context) (driver.Conn, error) {
	inner, err := o.driver.Open(o.dsn)
	return &connection{inner, o, o.connections.Add(1)}, err
}

func (o *other) Driver() driver.Driver { return o.driver }

// connection shows its field Conn, so that the status of the inner one is found.
type connection struct {
	driver.Conn
	other  *other
	number int64
}

func (c *connection) rewritten(query string) string {
	if c.other.rewrite == nil {
		return query
	}
	return c.other.rewrite(c.number, query)
}

func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, c.rewritten(query), args)
}

func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, c.rewritten(query), args)
}

func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, c.rewritten(query))
}

func (c *connection) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if c.other.level != 0 {
		options.Isolation = driver.IsolationLevel(c.other.level)
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	if err == nil && c.other.commits {
		tx = committing{tx}
	}
	return tx, err
}

func (c *connection) ResetSession(ctx context.Context) error {
	if inner, ok := c.Conn.(driver.SessionResetter); ok {
		return inner.ResetSession(ctx)
	}
	return nil
}

func (c *connection) IsValid() bool {
	inner, ok := c.Conn.(driver.Validator)
	return !ok || inner.IsValid()
}

func (c *connection) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := c.Conn.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type committing struct{ driver.Tx }

func (c committing) Rollback() error { return c.Commit() }

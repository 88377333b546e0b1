package engine_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/testdb"
)

// other is a server that lacks something: it gets other statements than the ones that are sent.
type other struct {
	// rewrite returns what the server gets for a statement on a connection, which are numbered.
	rewrite func(connection int64, query string) string

	level    sql.IsolationLevel // of every transaction, unless it is 0
	commits  bool               // a ROLLBACK commits
	delays   string             // a statement with this text takes effect at COMMIT, which fails if it then counts other rows
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
	return &connection{Conn: inner, other: o, number: o.connections.Add(1)}, err
}

func (o *other) Driver() driver.Driver { return o.driver }

// connection shows its field Conn, so that the status of the inner one is found.
type connection struct {
	driver.Conn
	other  *other
	number int64

	delayed []func(ctx context.Context) error
}

func (c *connection) rewritten(query string) string {
	if c.other.rewrite == nil {
		return query
	}
	return c.other.rewrite(c.number, query)
}

func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	exec := c.Conn.(driver.ExecerContext).ExecContext
	if c.other.delays == "" || !strings.Contains(query, c.other.delays) {
		return exec(ctx, c.rewritten(query), args)
	}
	if _, err := exec(ctx, `SAVEPOINT delayed`, nil); err != nil {
		return nil, err
	}
	result, err := exec(ctx, query, args)
	if err != nil {
		return nil, err
	}
	c.delayed = append(c.delayed, func(ctx context.Context) error {
		again, err := exec(ctx, query, args)
		if err != nil || again == result {
			return err
		}
		return &pgconn.PgError{Code: "40001", Message: "another transaction was first"}
	})
	_, err = exec(ctx, `ROLLBACK TO SAVEPOINT delayed`, nil)
	return result, err
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
	c.delayed = nil
	switch {
	case err != nil:
	case c.other.commits:
		tx = committing{tx}
	case c.other.delays != "":
		tx = delaying{tx, c, context.WithoutCancel(ctx)}
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

type delaying struct {
	driver.Tx
	*connection
	ctx context.Context //nolint:containedctx // of BeginTx: Commit gets none
}

func (d delaying) Commit() error {
	for _, do := range d.delayed {
		if err := do(d.ctx); err != nil {
			return errors.Join(err, d.Tx.Rollback())
		}
	}
	return d.Tx.Commit()
}

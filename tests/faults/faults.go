// Package faults stands between database/sql and a driver, so that a test can interfere
// with single calls: look on, wait, fail, or lose an answer.
package faults

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/testdb"
)

// Names of the calls that are not statements.
const (
	Begin    = "BEGIN"
	Commit   = "COMMIT"
	Rollback = "ROLLBACK"
)

// ErrLost is what a call reports whose answer got lost.
var ErrLost = errors.Join(errors.New("faults: the answer was lost"), driver.ErrBadConn)

// Plan says what happens at each call. Either function may be nil.
type Plan struct {
	// Before is called with the statement, or one of the names; an error is the answer, and
	// the driver is not asked.
	Before func(ctx context.Context, call string) error

	// After is called when the driver has answered without an error; an error replaces the
	// answer.
	After func(ctx context.Context, call string) error

	// Stays is asked at a COMMIT; an error is the answer, and the transaction stays open, as
	// with modernc.org/sqlite up to 1.45.
	Stays func(ctx context.Context) error
}

// Faults is a pool whose plan can be changed while it is in use.
type Faults struct {
	*sqlx.DB
	plan    atomic.Pointer[Plan]
	notices bool
}

// Open returns a second pool on the database of db.
func Open(t testing.TB, db *testdb.DB) *Faults {
	t.Helper()
	f := &Faults{}
	f.Set(Plan{})
	pool := sql.OpenDB(&connector{faults: f, driver: db.DB.Driver(), dsn: db.DSN})
	f.DB = sqlx.NewDb(pool, db.DB.DriverName())
	f.SetMaxOpenConns(10)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Set replaces the plan.
func (f *Faults) Set(p Plan) { f.plan.Store(&p) }

// PassNotices has the connections that are opened from now on pass on what PostgreSQL notifies of, where the driver does.
// Call it before the pool is used.
func (f *Faults) PassNotices() { f.notices = true }

func (f *Faults) before(ctx context.Context, call string) error {
	if before := f.plan.Load().Before; before != nil {
		return before(ctx, call)
	}
	return nil
}

func (f *Faults) after(ctx context.Context, call string) error {
	if after := f.plan.Load().After; after != nil {
		return after(ctx, call)
	}
	return nil
}

type connector struct {
	faults *Faults
	driver driver.Driver
	dsn    string
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	outer := &conn{Conn: inner, faults: c.faults}
	if pgx, is := inner.(pgxConn); is && c.faults.notices {
		return noticing{outer, pgx}, nil
	}
	return outer, nil
}

// open ends with ctx if the driver can, as with database/sql.
func (c *connector) open(ctx context.Context) (driver.Conn, error) {
	able, is := c.driver.(driver.DriverContext)
	if !is {
		return c.driver.Open(c.dsn)
	}
	inner, err := able.OpenConnector(c.dsn)
	if err != nil {
		return nil, err
	}
	return inner.Connect(ctx)
}

func (c *connector) Driver() driver.Driver { return c.driver }

type conn struct {
	driver.Conn
	faults *Faults
}

type pgxConn interface{ Conn() *pgx.Conn }

// noticing is a connection that gives away that of pgx, on which notices are waited for.
type noticing struct {
	*conn
	pgx pgxConn
}

func (c noticing) Conn() *pgx.Conn { return c.pgx.Conn() }

type connectionKey struct{}

// Connection returns what tells the connection of a call from others, in the context that a [Plan] is given.
func Connection(ctx context.Context) any { return ctx.Value(connectionKey{}) }

func (c *conn) before(ctx context.Context, call string) error {
	return c.faults.before(context.WithValue(ctx, connectionKey{}, c), call)
}

func (c *conn) after(ctx context.Context, call string) error {
	return c.faults.after(context.WithValue(ctx, connectionKey{}, c), call)
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if err := c.before(ctx, Begin); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	return &transaction{Tx: tx, conn: c, ctx: ctx}, c.after(ctx, Begin)
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	result, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return result, c.after(ctx, query)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return rows, c.after(ctx, query)
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
}

func (c *conn) ResetSession(ctx context.Context) error {
	if inner, ok := c.Conn.(driver.SessionResetter); ok {
		return inner.ResetSession(ctx)
	}
	return nil
}

func (c *conn) IsValid() bool {
	inner, ok := c.Conn.(driver.Validator)
	return !ok || inner.IsValid()
}

func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := c.Conn.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type transaction struct {
	driver.Tx
	conn *conn
	ctx  context.Context //nolint:containedctx // of BeginTx: Commit and Rollback get none
}

func (t *transaction) Commit() error {
	if stays := t.conn.faults.plan.Load().Stays; stays != nil {
		if err := stays(t.ctx); err != nil {
			return err
		}
	}
	if err := t.conn.before(t.ctx, Commit); err != nil {
		return errors.Join(err, t.Tx.Rollback())
	}
	if err := t.Tx.Commit(); err != nil {
		return err
	}
	return t.conn.after(t.ctx, Commit)
}

func (t *transaction) Rollback() error {
	if err := t.conn.before(t.ctx, Rollback); err != nil {
		return errors.Join(err, t.Tx.Rollback())
	}
	if err := t.Tx.Rollback(); err != nil {
		return err
	}
	return t.conn.after(t.ctx, Rollback)
}

package database_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/tests/testdb"
)

// wrappers are what tracers and poolers put round a connection.
var wrappers = map[string]func(driver.Conn) driver.Conn{
	"none":        func(c driver.Conn) driver.Conn { return c },
	"Raw":         func(c driver.Conn) driver.Conn { return raw{hiding{c}} },
	"WrappedConn": func(c driver.Conn) driver.Conn { return wrappedConn{hiding{c}} },
	"Unwrap":      func(c driver.Conn) driver.Conn { return unwrap{hiding{c}} },
	"WithConn":    func(c driver.Conn) driver.Conn { return withConn{hiding{c}} },
	"embedded":    func(c driver.Conn) driver.Conn { return &embedding{c} },
	"all":         func(c driver.Conn) driver.Conn { return raw{hiding{withConn{hiding{&embedding{unwrap{hiding{c}}}}}}} },
}

type (
	hiding      struct{ inner driver.Conn }
	raw         struct{ hiding }
	wrappedConn struct{ hiding }
	unwrap      struct{ hiding }
	withConn    struct{ hiding }
	empty       struct{ hiding }
	embedding   struct{ driver.Conn }
)

func (h hiding) Prepare(query string) (driver.Stmt, error) { return h.inner.Prepare(query) }
func (h hiding) Close() error                              { return h.inner.Close() }
func (h hiding) Begin() (driver.Tx, error)                 { return h.inner.Begin() } //nolint:staticcheck // what a driver must have

func (r raw) Raw() driver.Conn                 { return r.inner }
func (w wrappedConn) WrappedConn() driver.Conn { return w.inner }
func (u unwrap) Unwrap() driver.Conn           { return u.inner }
func (empty) Raw() driver.Conn                 { return nil }

func (w withConn) WithConn(use func(driver.Conn) error) error { return use(w.inner) }

type connector struct {
	driver driver.Driver
	dsn    string
	wrap   func(driver.Conn) driver.Conn
}

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return c.wrap(inner), nil
}

func (c *connector) Driver() driver.Driver { return c.driver }

func wrapped(t *testing.T, db *testdb.DB, wrap func(driver.Conn) driver.Conn) *sqlx.DB {
	t.Helper()
	pool := sqlx.NewDb(sql.OpenDB(&connector{db.DB.Driver(), db.DSN, wrap}), db.DriverName())
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

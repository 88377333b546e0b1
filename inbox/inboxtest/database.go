package inboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// Database is a server and a database on it that belongs to the test: whatever is in it
// is dropped before each play. So that nothing else can be named by mistake, the word test
// must be in what the server calls the database or its current schema, or in the name of
// SQLite's file: shop_test, test.db. Without it the test fails, and nothing is dropped.
type Database struct {
	Driver string // its name for sql.Open
	DSN    string

	// DropAll permits a database without the word test in its name: nothing in it is needed.
	DropAll bool
}

// connector returns what opens the connections of the database, undisturbed.
func (d Database) connector() (driver.Connector, error) {
	pool, err := sql.Open(d.Driver, d.DSN)
	if err != nil {
		return nil, err
	}
	defer pool.Close() //nolint:errcheck // it has no connection
	if own, able := pool.Driver().(driver.DriverContext); able {
		return own.OpenConnector(d.DSN)
	}
	return plainConnector{pool.Driver(), d.DSN}, nil
}

type plainConnector struct {
	driver driver.Driver
	dsn    string
}

func (c plainConnector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c plainConnector) Driver() driver.Driver                        { return c.driver }

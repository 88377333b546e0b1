package inboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// Database is a database that belongs to the test: each play first drops all tables in it, and on
// PostgreSQL all types. Functions, sequences and views may stay; Prepare must cope with them. To
// protect other databases, the server's name for the database or its current schema, or the name
// of the SQLite file, must contain the word test, as in shop_test or test.db. Otherwise the test
// fails, and nothing is dropped. Where it can, a play restores the rows instead of calling Prepare
// again: not with triggers, rules or partitions.
type Database struct {
	Driver string // the name for sql.Open
	DSN    string

	// DropAll permits a database without the word test in its name. Set it only if nothing in it is needed.
	DropAll bool
}

// connector returns a connector for the database without faults.
func (d Database) connector() (driver.Connector, error) {
	pool, err := sql.Open(d.Driver, d.DSN)
	if err != nil {
		return nil, err
	}
	defer pool.Close() //nolint:errcheck // it has no connections
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

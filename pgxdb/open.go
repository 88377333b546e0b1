package pgxdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/owned"
)

// name is that of the driver.
const name = "pgxdb"

func init() {
	sql.Register(name, &Driver{stdlib.GetDefaultDriver()})
	sqlx.BindDriver(name, sqlx.DOLLAR)
}

// Open returns a pool of connections to the database of config. It opens none yet.
func Open(config *pgx.ConnConfig, options ...stdlib.OptionOpenDB) *sqlx.DB {
	return sqlx.NewDb(sql.OpenDB(Connector(stdlib.GetConnector(*config, options...))), name)
}

// OpenPool returns a pool that takes its connections from pool, and as many at once as pool has. The service goes on
// using pool, and closes it after the one that OpenPool returned.
func OpenPool(pool *pgxpool.Pool, options ...stdlib.OptionOpenDB) *sqlx.DB {
	db := sql.OpenDB(pooled{Connector(stdlib.GetPoolConnector(pool, options...)), pool})
	db.SetMaxIdleConns(0) // pool keeps them
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	return sqlx.NewDb(db, name)
}

// pooled is the connector of a pool that the service uses beside.
type pooled struct {
	driver.Connector
	pool *pgxpool.Pool
}

// Connect takes a connection of the pool. Its error says so if none was free: then the server was not asked.
func (p pooled) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := p.Connector.Connect(ctx)
	if stat := p.pool.Stat(); err != nil && ctx.Err() != nil && stat.AcquiredConns() >= stat.MaxConns() {
		return nil, fmt.Errorf("%w: no connection of the pgxpool is free: %w", owned.ErrUnasked, err)
	}
	return c, err
}

// Connector returns a connector that saves round trips on the connections of inner, which comes from
// stdlib.GetConnector or stdlib.GetPoolConnector. A tracer that wraps connectors wraps this one.
func Connector(inner driver.Connector) driver.Connector { return connector{inner} }

type connector struct{ inner driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	return connected(c.inner.Connect(ctx))
}

func (c connector) Driver() driver.Driver { return &Driver{c.inner.Driver()} }

// Driver is the driver that is registered as "pgxdb". It takes the DSNs of pgx.
type Driver struct{ inner driver.Driver }

// Open opens a connection.
func (d *Driver) Open(dsn string) (driver.Conn, error) { return connected(d.inner.Open(dsn)) }

// OpenConnector returns a connector for the database of dsn.
func (d *Driver) OpenConnector(dsn string) (driver.Connector, error) {
	inner, err := d.inner.(driver.DriverContext).OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	return Connector(inner), nil
}

// connected wraps a connection of pgx's driver.
func connected(c driver.Conn, err error) (driver.Conn, error) {
	if err != nil {
		return nil, err
	}
	inner, is := c.(*stdlib.Conn)
	if !is {
		_ = c.Close()
		return nil, errNotPgx
	}
	return newConn(inner), nil
}

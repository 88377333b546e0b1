package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/owned"
)

// name is that of the driver.
const name = "mysqldb"

func init() {
	sql.Register(name, &Driver{})
	sqlx.BindDriver(name, sqlx.QUESTION)
}

// Open returns a pool of connections to the server of config. It opens none yet. It returns an error if config lacks
// MultiStatements or InterpolateParams, or names a character set other than utf8mb4: in gbk, for one, the server would
// read bytes of an argument as SQL.
func Open(config *mysql.Config) (*sqlx.DB, error) {
	c, err := NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sqlx.NewDb(sql.OpenDB(c), name), nil
}

// NewConnector returns a connector for the server of config, for what wraps connectors. It returns the errors of [Open].
func NewConnector(config *mysql.Config) (driver.Connector, error) {
	if !config.MultiStatements || !config.InterpolateParams {
		return nil, errors.New("mysqldb: the connection string needs multiStatements=true and interpolateParams=true: " +
			"set them, or use the driver mysql")
	}
	if err := dialect.CheckCharset(config.FormatDSN()); err != nil {
		return nil, fmt.Errorf("mysqldb: %w", err)
	}
	inner, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return connector{inner}, nil
}

type connector struct{ inner driver.Connector }

func (connector) Driver() driver.Driver { return &Driver{} }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	made, err := c.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, able := made.(flight.Inner)
	if !able {
		_ = made.Close()
		return nil, fmt.Errorf("mysqldb: a connection of go-sql-driver/mysql, a %T, lacks methods that it had: use the driver mysql", made)
	}
	return &conn{flight.NewLink(inner, &wire{inner}), inner}, nil
}

// Driver is the driver that is registered as "mysqldb". It takes the connection strings of go-sql-driver/mysql.
type Driver struct{}

// Open opens a connection.
func (d *Driver) Open(dsn string) (driver.Conn, error) {
	c, err := d.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	return c.Connect(context.Background())
}

// OpenConnector returns a connector for the server of dsn.
func (*Driver) OpenConnector(dsn string) (driver.Connector, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return NewConnector(config)
}

// conn is a connection of go-sql-driver/mysql whose transactions take fewer flights.
type conn struct {
	*flight.Link
	inner flight.Inner
}

// Raw returns the driver's connection, as wrappers do.
func (c *conn) Raw() driver.Conn { return c.inner }

// TxStatus returns, in PostgreSQL's letters, what the server said last of the transaction, or will say once BEGIN is sent.
func (c *conn) TxStatus() byte {
	if c.Pending() || owned.InTx(c.inner) {
		return 'T'
	}
	return 'I'
}

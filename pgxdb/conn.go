package pgxdb

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-go/millrace/internal/flight"
)

var errNotPgx = errors.New("pgxdb: the connector is not one of pgx's stdlib: use stdlib.GetConnector or stdlib.GetPoolConnector")

// conn is a connection of pgx's driver whose transactions take fewer flights.
type conn struct {
	*flight.Link
	pgx *pgx.Conn
}

func newConn(inner *stdlib.Conn) *conn {
	var wire flight.Wire
	if p := pipeOf(inner.Conn()); p != nil {
		wire = p
	}
	return &conn{Link: flight.NewLink(inner, wire), pgx: inner.Conn()}
}

// TxStatus returns what the server said last of the transaction, or will say once BEGIN is sent.
func (c *conn) TxStatus() byte {
	if c.Pending() {
		return 'T'
	}
	return c.pgx.PgConn().TxStatus()
}

// ExecContext runs a statement, or lends the connection to an argument that borrows it.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) == 1 {
		if b, borrows := args[0].Value.(*borrow); borrows {
			if err := c.Direct(); err != nil {
				return nil, err
			}
			b.use(c.pgx)
			return driver.RowsAffected(0), nil
		}
	}
	return c.Link.ExecContext(ctx, query, args)
}

// Conn returns pgx's connection, for users of sql.Conn.Raw, after it has sent what waits.
func (c *conn) Conn() *pgx.Conn {
	_ = c.Direct() // after an error the caller's statements fail too: the transaction or the connection is broken
	return c.pgx
}

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

// conn is a connection whose transactions save round trips. Like every driver's connection it is used by one goroutine
// at a time.
type conn struct {
	inner *stdlib.Conn
	pipe  *pipe        // nil if pgx is configured for a mode that pipe does not know
	tx    *transaction // nil outside of one
}

var (
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
	_ driver.SessionResetter    = (*conn)(nil)
)

func newConn(inner *stdlib.Conn) *conn { return &conn{inner: inner, pipe: pipeOf(inner.Conn())} }

// Conn returns pgx's connection, for users of sql.Conn.Raw, after it has sent what waits.
func (c *conn) Conn() *pgx.Conn {
	if c.tx != nil {
		_ = c.direct(c.tx.ctx) // after an error the caller's statements fail too: the transaction or the connection is broken
	}
	return c.inner.Conn()
}

// TxStatus returns what the server said last of the transaction, or will say once BEGIN is sent.
func (c *conn) TxStatus() byte {
	if c.tx != nil && c.tx.begin != "" {
		return 'T'
	}
	return c.inner.Conn().PgConn().TxStatus()
}

// CheckNamedValue lets all arguments pass, as pgx does.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error { return c.inner.CheckNamedValue(v) }

// Ping asks the server for an answer.
func (c *conn) Ping(ctx context.Context) error { return c.inner.Ping(ctx) }

// Close closes the connection, or gives it back to its pgxpool.
func (c *conn) Close() error { return c.inner.Close() }

// ResetSession is called before the connection is used again.
func (c *conn) ResetSession(ctx context.Context) error {
	if c.tx != nil { // database/sql ends each transaction
		return driver.ErrBadConn
	}
	return c.inner.ResetSession(ctx)
}

// Prepare is PrepareContext without a context.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext prepares a statement for the caller.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	inner, err := c.inner.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return &prepared{inner, c}, nil
}

// QueryContext runs a query.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	return c.inner.QueryContext(ctx, query, args)
}

// ExecContext runs a statement. What waits is sent in the same flight.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if lent, err := c.lend(ctx, args); lent {
		return driver.RowsAffected(0), err
	}
	t := c.tx
	if late := flight.Of(ctx); late != nil && t.defers() {
		t.waiting = append(t.waiting, &statement{sql: query, args: values(args), late: late})
		return driver.RowsAffected(late.Rows), nil
	}
	if t != nil && t.waits() && ordinary(args) {
		return t.exec(ctx, query, args)
	}
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	return c.inner.ExecContext(ctx, query, args)
}

// prepared is a statement that the caller prepared.
type prepared struct {
	driver.Stmt
	conn *conn
}

// ExecContext sends what waits, and then the statement.
func (p *prepared) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := p.conn.flush(ctx); err != nil {
		return nil, err
	}
	return p.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

// QueryContext sends what waits, and then the query.
func (p *prepared) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := p.conn.flush(ctx); err != nil {
		return nil, err
	}
	return p.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

// CheckNamedValue lets all arguments pass, as pgx does.
func (p *prepared) CheckNamedValue(v *driver.NamedValue) error { return p.conn.CheckNamedValue(v) }

// values returns the arguments as pgx takes them.
func values(args []driver.NamedValue) []any {
	all := make([]any, len(args))
	for i := range args {
		all[i] = args[i].Value
	}
	return all
}

// ordinary reports whether a statement has arguments and none that changes how pgx runs it. pgx sends a statement
// without arguments as text, which may be a SAVEPOINT, a COMMIT or several statements.
func ordinary(args []driver.NamedValue) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].Value.(type) {
	case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

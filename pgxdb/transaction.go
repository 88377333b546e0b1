package pgxdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/flight"
)

// transaction is one that may not have begun on the server.
type transaction struct {
	conn    *conn
	ctx     context.Context //nolint:containedctx // that of BeginTx bounds COMMIT and ROLLBACK, as in pgx
	begin   string          // BEGIN, while it has not been sent
	waiting []*statement    // for COMMIT
	failed  error           // of BEGIN: there is no transaction, so nothing may be sent
	used    bool            // by the caller's savepoints, or by pgx's connection: nothing waits for COMMIT any more
}

// isolation has the levels that PostgreSQL knows.
var isolation = map[sql.IsolationLevel]string{
	sql.LevelDefault:         "",
	sql.LevelReadUncommitted: " isolation level read uncommitted",
	sql.LevelReadCommitted:   " isolation level read committed",
	sql.LevelRepeatableRead:  " isolation level repeatable read",
	sql.LevelSnapshot:        " isolation level repeatable read",
	sql.LevelSerializable:    " isolation level serializable",
}

// Begin is BeginTx without a context.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx begins a transaction, but sends nothing. If the server has sent something meanwhile, for instance that it
// shuts down, it sends BEGIN at once: database/sql then takes another connection if this one is dead.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	level, known := isolation[sql.IsolationLevel(options.Isolation)]
	inner := c.inner.Conn()
	if c.pipe == nil || !known || inner.IsClosed() || inner.PgConn().TxStatus() != 'I' || !quiet(inner.PgConn().Conn()) {
		return c.inner.BeginTx(ctx, options)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if options.ReadOnly {
		level += " read only"
	}
	c.tx = &transaction{conn: c, ctx: ctx, begin: "begin" + level}
	return c.tx, nil
}

// waits reports whether something has to be sent before the next statement, or was refused.
func (t *transaction) waits() bool { return t.begin != "" || len(t.waiting) > 0 || t.failed != nil }

// defers reports whether a statement may wait for COMMIT.
func (t *transaction) defers() bool { return t != nil && !t.used && t.conn.TxStatus() == 'T' }

// before prepares for a statement that is sent by pgx's driver.
func (c *conn) before(ctx context.Context, query string) error {
	if c.tx == nil {
		return nil
	}
	if strings.Contains(strings.ToLower(query), "savepoint") { // what waits must not be sent after a ROLLBACK TO SAVEPOINT
		return c.direct(ctx)
	}
	return c.flush(ctx)
}

// flush sends what waits.
func (c *conn) flush(ctx context.Context) error {
	if c.tx == nil || !c.tx.waits() {
		return nil
	}
	_, _, err := c.tx.send(ctx, nil)
	return err
}

// direct sends what waits, and lets nothing wait any more.
func (c *conn) direct(ctx context.Context) error {
	if c.tx == nil {
		return nil
	}
	c.tx.used = true
	return c.flush(ctx)
}

// exec sends a statement of the caller's with what waits.
func (t *transaction) exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	sent, tag, err := t.send(ctx, &statement{sql: query, args: values(args)})
	switch {
	case err == nil:
		return driver.RowsAffected(tag.RowsAffected()), nil
	case sent || t.conn.TxStatus() != 'T': // a statement that cannot be prepared makes the transaction fail
		return nil, err
	}
	if err := t.conn.flush(ctx); err != nil {
		return nil, err
	}
	return t.conn.inner.ExecContext(ctx, query, args) // which meets the error as without this package
}

// Commit commits, with all that waits in the same flight.
func (t *transaction) Commit() error {
	c := t.conn
	c.tx = nil
	if t.begin != "" && len(t.waiting) == 0 && t.failed == nil {
		return nil // nothing was done
	}
	_, tag, err := t.send(t.ctx, &statement{sql: "commit"})
	switch inner := c.inner.Conn(); {
	case err != nil && inner.PgConn().TxStatus() != 'I':
		_ = inner.Close(t.ctx) // as pgx does
	case err == nil && tag.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback rolls back.
func (t *transaction) Rollback() error {
	c := t.conn
	c.tx = nil
	if t.begin != "" || t.failed != nil {
		return nil //nolint:nilerr // it never began
	}
	inner := c.inner.Conn()
	_, err := inner.Exec(t.ctx, "rollback")
	if err != nil {
		_ = inner.Close(t.ctx) // as pgx does
	}
	return err
}

// send sends what waits and then last, unless it is nil, in one flight, and returns the tag of the last statement. If
// one fails, the server runs none of those after it. If one cannot be sent, none is, and all go on waiting.
func (t *transaction) send(ctx context.Context, last *statement) (sent bool, tag pgconn.CommandTag, err error) {
	pipe := t.conn.pipe
	switch {
	case t.failed != nil:
		return false, tag, t.failed
	case pipe.conn.IsClosed():
		return false, tag, driver.ErrBadConn
	}
	all := make([]*statement, 0, len(t.waiting)+2)
	if t.begin != "" {
		all = append(all, &statement{sql: t.begin})
	}
	all = append(all, t.waiting...)
	if last != nil {
		all = append(all, last)
	}
	at, err := pipe.encode(ctx, all)
	if err == nil {
		begins := t.begin != ""
		t.begin, t.waiting, sent = "", nil, true
		if at, tag, err = pipe.send(ctx, all); err != nil && at == 0 && begins {
			t.failed = err
		}
	}
	if err == nil || all[at].late == nil {
		return sent, tag, err
	}
	return sent, tag, refused(err, all[at].late, sent)
}

// refused returns the error of a statement that waited, as a [flight.Error] if the COMMIT certainly was not reached. If
// it was sent and the server has not answered, that is in doubt.
func refused(err error, late *flight.Late, sent bool) error {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == divisionByZero && late.Rows > 0 {
		err = fmt.Errorf("%w, %d", flight.ErrRows, late.Rows)
	}
	if sent && answer == nil {
		return err
	}
	return &flight.Error{What: late.What(), Err: err}
}

package pgxdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/flight"
)

// isolation has the levels that PostgreSQL knows.
var isolation = map[sql.IsolationLevel]string{
	sql.LevelDefault:         "",
	sql.LevelReadUncommitted: " isolation level read uncommitted",
	sql.LevelReadCommitted:   " isolation level read committed",
	sql.LevelRepeatableRead:  " isolation level repeatable read",
	sql.LevelSnapshot:        " isolation level repeatable read",
	sql.LevelSerializable:    " isolation level serializable",
}

// Begin returns nothing if the server has sent something since the last statement, for instance that it shuts down: where
// BEGIN meets a dead connection, database/sql takes another one.
func (p *pipe) Begin(options driver.TxOptions) string {
	level, known := isolation[sql.IsolationLevel(options.Isolation)]
	if !known || p.conn.IsClosed() || p.status() != 'I' || !quiet(p.conn.PgConn().Conn()) {
		return ""
	}
	if options.ReadOnly {
		level += " read only"
	}
	return "begin" + level
}

// Send sends statements in one flight.
func (p *pipe) Send(ctx context.Context, all []*flight.Statement) (sent bool, result driver.Result, failed int, err error) {
	sent, tag, failed, err := p.run(ctx, all)
	return sent, driver.RowsAffected(tag.RowsAffected()), failed, err
}

// Commit sends statements, of which the last is a COMMIT. If it fails, it closes the connection unless the transaction is
// over, as pgx does.
func (p *pipe) Commit(ctx context.Context, all []*flight.Statement) (sent bool, failed int, err error) {
	sent, tag, failed, err := p.run(ctx, all)
	switch {
	case err != nil && p.status() != 'I':
		_ = p.conn.Close(ctx) // the error of COMMIT says more
	case err == nil && tag.String() == "ROLLBACK":
		err = pgx.ErrTxCommitRollback
	}
	return sent, failed, err
}

// Rollback rolls back. If it fails, it closes the connection, as pgx does.
func (p *pipe) Rollback(ctx context.Context) error {
	_, err := p.conn.Exec(ctx, "rollback")
	if err != nil {
		_ = p.conn.Close(ctx) // the error of ROLLBACK says more
	}
	return err
}

// ends has the severities of errors that end the connection.
var ends = map[string]bool{"FATAL": true, "PANIC": true}

// Refused reports whether the server answered a statement: after an error it runs no more of a flight. What ends the
// connection may come from a pooler that has lost the server, and the answers to what that has run, COMMIT too.
func (p *pipe) Refused(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || strings.HasPrefix(answer.Code, "08") { // old PgBouncers say ERROR
		return false
	}
	return !ends[answer.Severity] && !ends[answer.SeverityUnlocalized] // poolers send only the first, in English
}

// Open reports whether statements can run in a transaction.
func (p *pipe) Open() bool { return p.status() == 'T' }

func (p *pipe) status() byte { return p.conn.PgConn().TxStatus() }

// Ordinary reports whether a statement has arguments, and none that changes how pgx runs it. pgx sends a statement without
// arguments as text, which may be a SAVEPOINT, a COMMIT or several statements.
func (p *pipe) Ordinary(args []driver.NamedValue) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].Value.(type) {
	case pgx.QueryRewriter, pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/millrace-go/millrace/internal/flight"
	"github.com/millrace-go/millrace/internal/owned"
)

// wire sends several statements as one text.
type wire struct{ inner flight.Inner }

// isolation has the levels that MySQL knows.
var isolation = map[sql.IsolationLevel]string{
	sql.LevelReadUncommitted: "READ UNCOMMITTED",
	sql.LevelReadCommitted:   "READ COMMITTED",
	sql.LevelRepeatableRead:  "REPEATABLE READ",
	sql.LevelSerializable:    "SERIALIZABLE",
}

// Begin returns the statements by which go-sql-driver/mysql begins a transaction.
func (*wire) Begin(options driver.TxOptions) string {
	begin := "START TRANSACTION"
	if options.ReadOnly {
		begin += " READ ONLY"
	}
	level := sql.IsolationLevel(options.Isolation)
	if level == sql.LevelDefault {
		return begin
	}
	if isolation[level] == "" {
		return ""
	}
	return "SET TRANSACTION ISOLATION LEVEL " + isolation[level] + "; " + begin
}

// Codes of errors.
const (
	twoRows         = 1242 // of textOf
	commitFailed    = 1180
	notPrepared     = 1047 // a node of Galera is cut off from the others
	binlogFailed    = 1598
	hookFailed      = 3100
	hookRolledBack  = 3101
	shutsDown       = 1053
	interrupted     = 1317
	killed          = 1927
	idleDisconnects = 4031
	ofClients       = 2000 // to 2999: errors of client libraries, which a proxy uses
	ofProxySQL      = 9000 // and more
)

// textOf returns a statement as it is sent: where the number of rows decides, with another one that fails unless that
// many rows were changed.
func textOf(s *flight.Statement) string {
	if s.Late == nil || s.Late.Rows == 0 {
		return s.SQL
	}
	return fmt.Sprintf("%s; SET @millrace = (SELECT n FROM (SELECT 1 AS n UNION ALL SELECT 2) two WHERE ROW_COUNT() <> %d)", s.SQL, s.Late.Rows)
}

// Send sends statements as one text. If that is too large for one packet, it sends one after the other.
func (w *wire) Send(ctx context.Context, all []*flight.Statement) (sent bool, result driver.Result, failed int, err error) {
	begins := !w.Open()
	result, err = w.exec(ctx, all)
	if errors.Is(err, driver.ErrSkip) && len(all) > 1 {
		for _, s := range all {
			if result, err = w.exec(ctx, []*flight.Statement{s}); err != nil {
				break
			}
		}
	}
	failed = -1 // the server does not say which
	var answer *mysql.MySQLError
	switch {
	case err != nil && begins && !w.Open():
		failed = 0
	case errors.As(err, &answer) && answer.Number == twoRows:
		for _, s := range all {
			if s.Late != nil && s.Late.Rows > 0 {
				err = fmt.Errorf("%w, %d: %w", flight.ErrRows, s.Late.Rows, err)
				break
			}
		}
	}
	return true, result, failed, err
}

// exec sends statements as one text. A single one that cannot be sent with its arguments is prepared.
func (w *wire) exec(ctx context.Context, all []*flight.Statement) (driver.Result, error) {
	texts := make([]string, len(all))
	var args []driver.NamedValue
	for i, s := range all {
		texts[i] = textOf(s)
		for _, a := range s.Args {
			args = append(args, driver.NamedValue{Ordinal: len(args) + 1, Value: a})
		}
	}
	result, err := w.inner.ExecContext(ctx, strings.Join(texts, "; "), args)
	if !errors.Is(err, driver.ErrSkip) || len(all) > 1 {
		return result, err
	}
	prepared, err := w.inner.PrepareContext(ctx, all[0].SQL)
	if err != nil {
		return nil, err
	}
	defer prepared.Close() //nolint:errcheck // the server forgets it with the connection
	result, err = prepared.(driver.StmtExecContext).ExecContext(ctx, args)
	if err != nil || all[0].Late == nil || all[0].Late.Rows == 0 {
		return result, err
	}
	if n, err := result.RowsAffected(); err != nil || n != all[0].Late.Rows {
		return nil, errors.Join(fmt.Errorf("%w, %d", flight.ErrRows, all[0].Late.Rows), err)
	}
	return result, nil
}

// Commit sends statements, of which the last is a COMMIT, and rolls back if one of them fails.
func (w *wire) Commit(ctx context.Context, all []*flight.Statement) (sent bool, failed int, err error) {
	sent, _, failed, err = w.Send(ctx, all)
	if err != nil {
		_ = w.Rollback(ctx) // the error of COMMIT says more
	}
	return sent, failed, err
}

// Rollback rolls back, also when the context has ended, as go-sql-driver/mysql does.
func (w *wire) Rollback(ctx context.Context) error {
	_, err := w.inner.ExecContext(context.WithoutCancel(ctx), "ROLLBACK", nil)
	return err
}

// Refused reports whether the server answered with an error that no COMMIT has. A proxy may have lost the answer to one.
func (*wire) Refused(err error) bool {
	var answer *mysql.MySQLError
	if !errors.As(err, &answer) {
		return false
	}
	if n := answer.Number; n >= ofClients && n < ofClients+1000 || n >= ofProxySQL {
		return false
	}
	switch answer.Number {
	case commitFailed, notPrepared, binlogFailed, hookFailed, hookRolledBack, shutsDown, interrupted, killed, idleDisconnects:
		return false
	}
	return true
}

// Open reports whether the server has said that there is a transaction.
func (w *wire) Open() bool { return owned.InTx(w.inner) }

// Ordinary reports whether a statement has arguments: without, it may be a SAVEPOINT or a COMMIT.
func (*wire) Ordinary(args []driver.NamedValue) bool { return len(args) > 0 }

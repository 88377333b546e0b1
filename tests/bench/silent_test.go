package bench_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// silent is a database that takes everything and does nothing, so that what is left of the
// processor time is the callers' own.
type silent struct{}

func openSilent() *sqlx.DB {
	db := sql.OpenDB(silent{})
	db.SetMaxOpenConns(pool)
	db.SetMaxIdleConns(pool)
	return sqlx.NewDb(db, dialect.PostgresName)
}

func (silent) Connect(context.Context) (driver.Conn, error)                 { return silent{}, nil }
func (silent) Driver() driver.Driver                                        { return silent{} }
func (silent) Open(string) (driver.Conn, error)                             { return silent{}, nil }
func (silent) Prepare(string) (driver.Stmt, error)                          { return nil, driver.ErrSkip }
func (silent) Close() error                                                 { return nil }
func (silent) Begin() (driver.Tx, error)                                    { return silent{}, nil }
func (silent) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return silent{}, nil }
func (silent) Commit() error                                                { return nil }
func (silent) Rollback() error                                              { return nil }

func (silent) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), nil
}

// QueryContext knows one consumer, and READ COMMITTED.
func (silent) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(query, "FROM millrace_consumers") {
		retention := (7 * 24 * time.Hour).Microseconds()
		return &row{
			columns: []string{"id", "key_source", "retention"},
			values:  []driver.Value{int64(7), []byte("uuid"), retention},
		}, nil
	}
	return &row{columns: []string{"name", "level"}, values: []driver.Value{"isolation", "read committed"}}, nil
}

type row struct {
	columns []string
	values  []driver.Value
}

func (r *row) Columns() []string { return r.columns }
func (r *row) Close() error      { return nil }

func (r *row) Next(to []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(to, r.values)
	r.values = nil
	return nil
}

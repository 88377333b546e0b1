package dialect

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
)

// In expands the lists in args and returns query in the database's own placeholders.
func (d *Dialect) In(query string, args ...any) (string, []any, error) {
	query, args, err := sqlx.In(query, args...)
	if err != nil {
		return "", nil, fmt.Errorf("expand a list: %w", err)
	}
	return sqlx.Rebind(d.BindType, query), args, nil
}

// Rows is an INSERT of one row, which says what to do ON a conflict, for n rows: its arguments
// are repeated n times.
func Rows(insert string, n int) string {
	const conflict = "\n\t\tON "
	one, rest, _ := strings.Cut(insert, conflict)
	return InsertMany(one, n) + conflict + rest
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

package dialect

import (
	"database/sql"
	"errors"
	"fmt"

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

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

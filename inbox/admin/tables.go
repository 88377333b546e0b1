package admin

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
)

// Table is one of Millrace's tables, including those of the outbox.
type Table struct {
	Name string
	Rows int64 // -1 if the database does not know

	// Estimated says that Rows comes from the database's statistics, which may be old.
	Estimated bool
}

// Tables returns the tables and their sizes, in the order of the schema. On PostgreSQL, MySQL and
// MariaDB it reads statistics. SQLite has none, so there it counts rows: about 40 ms for a million.
func (a *Admin) Tables(ctx context.Context) ([]Table, error) {
	var rows []struct {
		Name      string `db:"name"`
		Rows      int64  `db:"rows"`
		Estimated bool   `db:"estimated"`
	}
	if err := sqlx.SelectContext(ctx, a.rows.Reader(ctx), &rows, a.rows.Dialect.SelectSizes); err != nil {
		return nil, fmt.Errorf("inbox: tables: %w", database.Explain(err))
	}
	sizes := make(map[string]Table, len(rows))
	for _, row := range rows {
		sizes[row.Name] = Table(row)
	}
	var all []Table
	for _, t := range a.rows.Dialect.Tables() {
		if size, found := sizes[t.Name]; found {
			all = append(all, size)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("inbox: tables: %w", inbox.ErrNotMigrated)
	}
	return all, nil
}

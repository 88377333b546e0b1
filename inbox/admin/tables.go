package admin

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/database"
)

// Table is a table of Millrace's, the outbox's among them.
type Table struct {
	Name string
	Rows int64 // -1 where the database does not know

	// Estimated says that Rows is what the database's statistics say, which can lag behind.
	Estimated bool
}

// Tables returns the tables and their sizes, in the order in which the schema makes them. On
// PostgreSQL, MySQL and MariaDB it asks for statistics and counts nothing. On SQLite, which
// has none, it counts: some 40 ms for a million rows.
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

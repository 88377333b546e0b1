package admin

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
)

// Migration is one step of the schema, with the row that records it.
type Migration struct {
	Version int
	DDL     string
}

// Pending returns what [inbox.Store.Migrate] would apply: nothing if the tables are up to date.
func (a *Admin) Pending(ctx context.Context) ([]Migration, error) {
	scripts, err := a.rows.Dialect.Pending(ctx, a.rows.Reader(ctx))
	if err != nil {
		return nil, fmt.Errorf("inbox: pending migrations: %w", database.Explain(err))
	}
	var pending []Migration
	for _, script := range scripts {
		pending = append(pending, Migration(script))
	}
	return pending, nil
}

package outbox

import (
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/bell"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// tables are the outbox in a database, the statements on it, and the bell that announces commits.
type tables struct {
	db   *database.DB
	sql  *dialect.Outbox
	bell *bell.Bell
}

func openTables(pool *sqlx.DB, name string, names dialect.Names) (*tables, error) {
	db, err := database.Open(pool, name, names)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &tables{db: db, sql: &db.Dialect.Outbox, bell: bell.Of(pool.DB, names)}, nil
}

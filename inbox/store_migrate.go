package inbox

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
)

// Migrate creates the tables or upgrades them to this release. It is idempotent, and safe when
// several processes start at once.
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.db.Migrate(ctx); err != nil {
		return fmt.Errorf("inbox: migrate: %w", database.Explain(err))
	}
	return nil
}

// Schema returns the DDL of all tables, for services with migrations of their own.
func (s *Store) Schema() string { return s.dialect.Schema() }

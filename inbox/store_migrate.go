package inbox

import (
	"context"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
)

// Migrate creates the tables or upgrades them to this release. It is idempotent, and safe when
// several processes start at once.
func (s *Store) Migrate(ctx context.Context) error {
	if s.config.Schema != "" {
		var found int
		err := s.db.GetContext(ctx, &found, `SELECT COUNT(*) FROM pg_namespace WHERE nspname = $1`, s.config.Schema)
		if err == nil && found == 0 {
			return fmt.Errorf("inbox: migrate: there is no schema %q: create it, or leave Config.Schema empty", s.config.Schema)
		}
	}
	if err := s.db.Migrate(ctx); err != nil {
		return fmt.Errorf("inbox: migrate: %w", database.Explain(err))
	}
	return nil
}

// Schema returns the DDL of all tables, for services with migrations of their own.
func (s *Store) Schema() string { return s.dialect.Schema() }

package dialect

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// Names says where the tables are.
type Names struct {
	Schema string // PostgreSQL only; empty means the connection's search path
	Prefix string // of every table
}

// DefaultPrefix starts every table's name unless the user chose another.
const DefaultPrefix = "millrace_"

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// Problems returns what is wrong with n and with the dialect's name, in terms of the fields of
// a user's Config. An empty name is valid: [Of] then asks the database.
func (n Names) Problems(name string) []error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !slices.Contains([]string{"", PostgresName, MySQLName, SQLiteName}, name) {
		problem("Dialect %q is not one of postgres, mysql, sqlite", name)
	}
	if !identifier.MatchString(n.Prefix) || len(n.Prefix) > 24 {
		problem("TablePrefix %q must be lower-case letters, digits and _, at most 24", n.Prefix)
	}
	if n.Schema != "" && (!identifier.MatchString(n.Schema) || len(n.Schema) > 63) {
		problem("Schema %q must be lower-case letters, digits and _, at most 63", n.Schema)
	}
	return problems
}

// Of returns the dialect with this name. If the name is empty, Of detects the dialect of db.
func Of(db *sqlx.DB, name string, names Names) (*Dialect, error) {
	if name == "" {
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if name, err = Detect(ctx, db); err != nil {
			return nil, fmt.Errorf("cannot tell which database this is: name it in Config.Dialect: %w", err)
		}
	}
	if names.Schema != "" && name != PostgresName {
		return nil, fmt.Errorf("Config.Schema %q is for PostgreSQL: on %s the connection names the database",
			names.Schema, name)
	}
	return For(name, names), nil
}

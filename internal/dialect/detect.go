package dialect

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
)

// Detect returns the name of the database that db talks to. It goes by the driver's name, then
// by the driver's type, and asks the server last.
func Detect(ctx context.Context, db *sqlx.DB) (string, error) {
	if name := OfDriver(db.DriverName()); name != "" {
		return name, nil
	}
	if name := OfDriver(fmt.Sprintf("%T", db.Driver())); name != "" {
		return name, nil
	}
	var version string
	if err := db.GetContext(ctx, &version, `SELECT sqlite_version()`); err == nil {
		return SQLiteName, nil
	}
	if err := db.GetContext(ctx, &version, `SELECT version()`); err != nil {
		return "", fmt.Errorf("ask the server what it is: %w", err)
	}
	if strings.HasPrefix(version, "PostgreSQL") {
		return PostgresName, nil
	}
	if version != "" && version[0] >= '0' && version[0] <= '9' {
		return MySQLName, nil
	}
	return "", fmt.Errorf("the server calls itself %q", version)
}

// OfDriver returns the name of the database that a driver, or the type of one, is for; "" if its name does not tell.
func OfDriver(name string) string {
	name = strings.ToLower(name)
	for _, known := range []struct{ part, dialect string }{
		{"pgx", PostgresName},
		{"postgres", PostgresName},
		{"pq.", PostgresName},
		{"stdlib.driver", PostgresName},
		{"mysql", MySQLName},
		{"mariadb", MySQLName},
		{"sqlite", SQLiteName},
	} {
		if strings.Contains(name, known.part) {
			return known.dialect
		}
	}
	return ""
}

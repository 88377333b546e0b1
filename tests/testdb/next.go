package testdb

import (
	"os"
	"testing"
)

// EachMySQL runs body as the subtests "mariadb" and "mysql" on fresh databases of the server
// that the dialect is usually tested on and of the MySQL that MILLRACE_TEST_MYSQL_NEXT names.
// Without the latter the second is left out.
func EachMySQL(t *testing.T, body func(t *testing.T, db *DB)) {
	t.Helper()
	t.Run("mariadb", func(t *testing.T) { body(t, On(t, "mysql")) })
	next(t, "mysql", body)
}

// EachAndNext is [Each] and, where MILLRACE_TEST_MYSQL_NEXT names a MySQL, the subtest "next" on it.
func EachAndNext(t *testing.T, body func(t *testing.T, db *DB)) {
	t.Helper()
	Each(t, body)
	next(t, "next", body)
}

func next(t *testing.T, name string, body func(t *testing.T, db *DB)) {
	t.Helper()
	if admin := os.Getenv("MILLRACE_TEST_MYSQL_NEXT"); admin != "" {
		t.Run(name, func(t *testing.T) { body(t, At(t, "mysql", admin)) })
	}
}

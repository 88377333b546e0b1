package testdb

import (
	"fmt"
	"testing"
)

// Bytes is an SQL expression of the bytes of the text of another one.
func (db *DB) Bytes(expression string) string {
	return fmt.Sprintf(map[string]string{
		"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
	}[db.Dialect], expression)
}

// Numbers is a table in SQL, of the numbers i from 1 to n.
func (db *DB) Numbers(n int) string {
	if db.MySQL() {
		return fmt.Sprintf("JSON_TABLE(CONCAT('[0', REPEAT(',0', %d), ']'), '$[*]' COLUMNS (i FOR ORDINALITY)) numbers", n-1)
	}
	return fmt.Sprintf(map[string]string{
		"postgres": "generate_series(1, %d) i",
		"mysql":    "(SELECT seq AS i FROM seq_1_to_%d) numbers",
		"sqlite":   "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT i FROM n) numbers",
	}[db.Dialect], n)
}

// Analyse has the server take statistics of tables.
func (db *DB) Analyse(t testing.TB, tables ...string) {
	t.Helper()
	for _, table := range tables {
		db.Do(t, map[string]string{"postgres": "ANALYZE ", "mysql": "ANALYZE TABLE ", "sqlite": "ANALYZE "}[db.Dialect]+table)
	}
}

// DropViews drops the views, which keep their tables from being dropped or changed.
func (db *DB) DropViews(t testing.TB) {
	t.Helper()
	for _, drop := range schema(db.Dialect).DropViews() {
		db.Do(t, drop)
	}
}

package tests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// explain returns the steps of a plan, one a line.
func explain(t *testing.T, db *testdb.DB, query string, args []any) []string {
	t.Helper()
	verb := map[string]string{"postgres": "EXPLAIN ", "mysql": "EXPLAIN ", "sqlite": "EXPLAIN QUERY PLAN "}
	rows, err := db.QueryxContext(t.Context(), verb[db.Dialect]+query, args...) //nolint:sqlclosecheck // closed below
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var plan []string
	for rows.Next() {
		step := make(map[string]any)
		require.NoError(t, rows.MapScan(step))
		for name, value := range step {
			if text, raw := value.([]byte); raw {
				step[name] = string(text)
			}
		}
		switch db.Dialect {
		case "mysql":
			plan = append(plan, fmt.Sprintf("%v %v type=%v key=%v %v",
				step["select_type"], step["table"], step["type"], step["key"], step["Extra"]))
		case "postgres":
			plan = append(plan, fmt.Sprint(step["QUERY PLAN"]))
		default:
			plan = append(plan, fmt.Sprint(step["detail"]))
		}
	}
	require.NoError(t, rows.Err())
	return plan
}

// derived are the names of what a statement made itself, and then reads.
var derived = []string{"counted", "k", "w", "h", "page"}

// scans reports whether a step reads a whole table.
func scans(database, step string) bool {
	switch database {
	case "postgres":
		return strings.Contains(step, "Seq Scan")
	case "mysql": // an INSERT, and what a UNION or a sub-select gave, are listed as ALL, though nothing is read
		return strings.Contains(step, "type=ALL") && !strings.HasPrefix(step, "INSERT ") &&
			!strings.Contains(step, "<union") && !strings.Contains(step, "<derived")
	default:
		read, scan := strings.CutPrefix(step, "SCAN ")
		return scan && !strings.Contains(step, "USING") && !strings.Contains(step, "CONSTANT ROW") &&
			!strings.HasPrefix(read, "(subquery-") && !slices.Contains(derived, strings.TrimSuffix(read, " LEFT-JOIN"))
	}
}

package tests_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// explain returns the steps of a plan, one a line.
func explain(t *testing.T, db *testdb.DB, query string, args []any) []string {
	t.Helper()
	verb := map[string]string{"postgres": "EXPLAIN ", "mysql": "EXPLAIN FORMAT=TRADITIONAL ", "sqlite": "EXPLAIN QUERY PLAN "}
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

// withoutArguments are statements of which PostgreSQL keeps any plan. They run when an operator asks for something.
var withoutArguments = []string{"Outbox.SelectEnds"}

// TestNoPlanIsKeptFromWhenTheOutboxWasEmpty: PostgreSQL keeps the plan of a statement that a connection runs
// again and again. One that was made when there was next to nothing reads the whole table.
func TestNoPlanIsKeptFromWhenTheOutboxWasEmpty(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	db.Do(t, `INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, order_key) VALUES (7, 1, 't', 'u', 'k'), (8, 1, 't', 'u', 'l')`)
	db.Do(t, `VACUUM ANALYZE millrace_outbox`)
	asks := regexp.MustCompile(`^\s*(SELECT|UPDATE|DELETE)`)
	seen := 0
	for name, statement := range statements(dialectOf(t, db)) {
		if !asks.MatchString(statement) || !strings.Contains(statement, "millrace_outbox\n") || slices.Contains(withoutArguments, name) {
			continue
		}
		seen++
		plan, kept := lastPlan(t, db, statement)
		assert.False(t, kept && strings.Contains(plan, "Seq Scan on millrace_outbox "), "%s\n%s", name, plan)
	}
	assert.Greater(t, seen, 15)
}

// lastPlan is the plan of a statement that has run so often that it may be kept.
func lastPlan(t *testing.T, db *testdb.DB, statement string) (plan string, kept bool) {
	t.Helper()
	conn, err := db.Connx(t.Context())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // of a test
	run := func(query string) { _, err := conn.ExecContext(t.Context(), query); require.NoError(t, err, query) }
	run("PREPARE again AS " + statement)
	defer run("DEALLOCATE again")
	var list string
	require.NoError(t, conn.GetContext(t.Context(), &list, `
		SELECT string_agg(CASE WHEN kind IN ('text', 'json') THEN '''[1]''' WHEN kind = 'boolean' THEN 'true' ELSE '1' END, ', ')
		FROM pg_prepared_statements, unnest(parameter_types::TEXT[]) AS kind
		WHERE name = 'again'`))
	var steps []string
	for range 7 {
		steps = nil
		require.NoError(t, sqlx.SelectContext(t.Context(), conn, &steps, "EXPLAIN EXECUTE again("+list+")"))
	}
	plan = strings.Join(steps, "\n")
	if version(t, db) < 14 { // whose plans tell alone: they name an argument, and what a sub-select returns
		return plan, slices.ContainsFunc(regexp.MustCompile(`\$\d+`).FindAllString(plan, -1), func(name string) bool {
			return !regexp.MustCompile(`returns .*\` + name + `\b`).MatchString(plan)
		})
	}
	require.NoError(t, conn.GetContext(t.Context(), &kept, "SELECT generic_plans > 0 FROM pg_prepared_statements WHERE name = 'again'"))
	return plan, kept
}

// version is the major one of a PostgreSQL.
func version(t *testing.T, db *testdb.DB) int {
	t.Helper()
	return db.Count(t, `SELECT current_setting('server_version_num')::int / 10000`)
}

// TestTheCatalogueIsReadOfOneDatabase: a server may have thousands of others, of which MariaDB would open each table.
func TestTheCatalogueIsReadOfOneDatabase(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	d := dialectOf(t, db)
	for name, query := range map[string]string{"SelectColumns": d.SelectColumns, "SelectSizes": d.SelectSizes} {
		plan := strings.Join(explain(t, db, query, nil), "\n")
		assert.NotEmpty(t, plan)
		assert.NotContains(t, plan, "Scanned all databases", "%s\n%s", name, plan)
	}
}

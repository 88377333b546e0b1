package tests_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// fill makes the tables big enough for a planner to care.
func fill(t *testing.T, db *testdb.DB) {
	t.Helper()
	text := map[string]string{
		"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
	}[db.Dialect]
	b := func(expression string) string { return fmt.Sprintf(text, expression) }
	mod := func(n int) string { return fmt.Sprintf("i %% %d", n) }
	for _, row := range []struct{ table, columns, values string }{
		{"consumers", "id, namespace, name, epoch, key_source, retention, created_at",
			"i, " + b(mod(1600)) + ", " + b("i") + ", 0, " + b("1") + ", 1, i"},
		{"claims", "consumer, message_id, result, processed_at, payload_hash, token",
			mod(5) + " + 1, " + b("i") + ", 1, i, 1, 1"},
		{"outcomes", "consumer, message_id, created_at, topic, messages",
			mod(5) + " + 1, " + b("i") + ", i * 1000000000000, " + b("1") + ", " + b("1")},
		{"results", "consumer, message_id, body", mod(5) + " + 1, " + b("i") + ", " + b("1")},
		{"messages", "consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, original",
			mod(5) + " + 1, " + b("i") + ", " + mod(40) + ", " + b("1") + ", " + b("i") + ", " + b("1") + ", " + b("1") +
				", 1, i, i, " + b("i")},
		{"audit", "at, actor, action, reason, consumer, message_id, detail",
			"i, " + b("1") + ", " + b("1") + ", " + b("1") + ", " + mod(5) + " + 1, " + b("i") + ", " + b("1")},
		{"dropped", "at, consumer, message_id, topic, reason",
			"i, " + mod(5) + " + 1, " + b("i") + ", " + b("1") + ", " + b("1")},
		{"leases", "consumer, message_id, token, until", mod(5) + " + 1, " + b("i") + ", 1, i"},
	} {
		execute(t, db, fmt.Sprintf(`
			INSERT INTO millrace_%s (%s)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 79)
			SELECT %s FROM (SELECT a.j * 80 + b.j + 1 AS i FROM n a CROSS JOIN n b) numbers`, row.table, row.columns, row.values))
		analyze := map[string]string{"postgres": "ANALYZE ", "mysql": "ANALYZE TABLE ", "sqlite": "ANALYZE "}
		execute(t, db, analyze[db.Dialect]+"millrace_"+row.table)
	}
}

// hot are the statements that must find their rows by an index, with arguments.
var hot = map[string][]any{
	"Claim":            {1, []byte("x"), 1, 1},
	"Lookup":           {1, []byte("7")},
	"Retake":           {1, 1, 1, []byte("7")},
	"SelectClaim":      {1, []byte("7")},
	"OpenClaim":        {1, []byte("x"), 1, 1},
	"ReopenClaim":      {1, []byte("7"), 1},
	"CloseClaim":       {1, 1, []byte("7")},
	"SelectConsumer":   {[]byte("7"), []byte("7"), 0},
	"SelectPurgeLine":  {7},
	"LockConsumer":     {7},
	"RaisePurgeLine":   {1, 7},
	"InsertOutcome":    {1, []byte("x"), []byte("t"), []byte("m")},
	"DeleteOutcomes":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"SelectOutcomes":   {[]byte("7"), 1, 100},
	"TouchMessage":     {[]byte("e"), 1, []byte("7"), 7},
	"MoveMessage":      {1, []byte("r"), 1, []byte("7"), 7},
	"DeleteMessage":    {1, []byte("7"), 7},
	"SelectMessage":    {7, []byte("7")},
	"SelectHeld":       {1, []byte("7")},
	"DeleteMessages":   {1, [][]byte{[]byte("7")}},
	"SelectMessages":   {[]byte("7"), 7, 0, 10},
	"StoryClaims":      {[]byte("7"), []byte("7")},
	"StoryMessages":    {[]byte("7"), []byte("7"), []byte("7"), []byte("7")},
	"StoryAudit":       {[]byte("7"), []byte("7")},
	"StoryDropped":     {[]byte("7"), []byte("7")},
	"SelectClaimsPage": {1, []byte("7"), 50},
	"LockExpired":      {1, [][]byte{[]byte("7"), []byte("8")}, 5000},
	"DeleteClaims":     {1, [][]byte{[]byte("7"), []byte("8")}},
	"DeleteResults":    {1, [][]byte{[]byte("7"), []byte("8")}},
	"PurgeDropped":     {50, 10},
	"PurgeLeases":      {50, 10},
	"AcquireLease":     {1, []byte("x"), 1, 1},
	"SelectLease":      {1, []byte("7")},
	"ConfirmLease":     {1, 1, []byte("7"), 1},
	"ExtendLease":      {1, 1, []byte("7"), 1},
	"ReleaseLease":     {1, []byte("7"), 1},
}

func TestHotStatementsUseAnIndex(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		d := dialectOf(t, db)
		all := statements(d)
		for _, name := range slices.Sorted(maps.Keys(hot)) {
			t.Run(name, func(t *testing.T) {
				query, args := all[name], hot[name]
				if strings.Contains(query, "(?)") {
					var err error
					query, args, err = d.In(query, args...)
					require.NoError(t, err)
				}
				plan := explain(t, db, query, args)
				for _, step := range plan {
					assert.False(t, scans(db.Dialect, step), "%s\n%s", step, strings.Join(plan, "\n"))
				}
				if db.Dialect == "postgres" && strings.Contains(query, "ON CONFLICT") {
					assert.Contains(t, strings.Join(plan, "\n"), "Conflict Arbiter Indexes")
				}
			})
		}
	})
}

func TestScansAreRecognised(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		plan := explain(t, db, `SELECT token FROM millrace_claims WHERE token = 7`, nil)
		assert.True(t, slices.ContainsFunc(plan, func(s string) bool { return scans(db.Dialect, s) }), "%q", plan)
	})
}

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
			plan = append(plan, fmt.Sprintf("%v %v type=%v key=%v", step["select_type"], step["table"], step["type"], step["key"]))
		case "postgres":
			plan = append(plan, fmt.Sprint(step["QUERY PLAN"]))
		default:
			plan = append(plan, fmt.Sprint(step["detail"]))
		}
	}
	require.NoError(t, rows.Err())
	return plan
}

// scans reports whether a step reads a whole table.
func scans(database, step string) bool {
	switch database {
	case "postgres":
		return strings.Contains(step, "Seq Scan")
	case "mysql": // an INSERT and the sum of a UNION are listed as ALL, though nothing is read
		return strings.Contains(step, "type=ALL") && !strings.HasPrefix(step, "INSERT ") && !strings.Contains(step, "<union")
	default:
		return strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "USING") && !strings.Contains(step, "CONSTANT ROW")
	}
}

package tests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// stock gives consumer 1 n open messages with their claims. The message ids are the numbers from 1 to n.
func stock(t *testing.T, db *testdb.DB, n int, values string) {
	t.Helper()
	number := map[string]string{
		"postgres": "convert_to(i::text, 'UTF8')", "mysql": "CAST(i AS CHAR)", "sqlite": "CAST(i AS BLOB)",
	}[db.Dialect]
	numbers := map[string]string{
		"postgres": fmt.Sprintf("generate_series(1, %d) i", n),
		"mysql":    fmt.Sprintf("(SELECT seq AS i FROM seq_1_to_%d) numbers", n),
		"sqlite": fmt.Sprintf(`(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			SELECT i FROM n) numbers`, n),
	}[db.Dialect]
	for table, columns := range map[string][2]string{
		"messages": {
			"status, due_at, order_key, aggregate, version, topic, uuid, metadata, payload, payload_hash, received_at",
			values + ", 't', 'u', '{}', 'p', 1, 1",
		},
		"claims": {"result, processed_at, payload_hash, token", "0, 1, 1, 1"},
	} {
		if db.Dialect == "postgres" {
			db.Do(t, `ALTER TABLE millrace_`+table+` SET (autovacuum_enabled = off)`)
		}
		db.Do(t, fmt.Sprintf(`INSERT INTO millrace_%s (consumer, message_id, %s) SELECT 1, %s, %s FROM %s`,
			table, columns[0], number, strings.ReplaceAll(columns[1], "number", number), numbers))
	}
}

// queued are the statements of a delivery, a queue, the gate and the janitor that meet what is stored, in the order in
// which to run them. Those without arguments take the ones of hot.
var queued = []struct {
	name string
	args []any
}{
	{"Lookup", nil},
	{"Queue.SelectStored", nil},
	{"Queue.SelectNextDue", []any{1, 1000}},
	{"Queue.SelectDue", []any{1, 0, 0, 64}},
	{"Queue.SelectDue", []any{1, 5, 6, 64}},
	{"Queue.SelectFront", []any{1, 1000, 256, 0, 0}},
	{"Queue.SelectFront", []any{1, 1000, 256, 5, 6}},
	{"Queue.SelectHeads", []any{0, 0, 1, []byte{}, 256}},
	{"Queue.SelectHeads", []any{5, 6, 1, []byte{}, 256}},
	{"Queue.SelectFree", []any{1, 1000, 64}},
	{"Queue.LockDue", nil},
	{"Queue.SelectSettled", nil},
	{"Queue.SelectOpen", []any{1}},
	{"Queue.SelectAdoptable", []any{1, 100}},
	{"Gate.SelectHeldAges", []any{1, 0, 500}},
	{"Gate.SelectExpired", nil},
	{"Gate.LockHeld", nil},
	{"Gate.CountHeld", []any{1, []byte("a"), 1000}},
	{"SelectClaimsPage", []any{1, []byte{}, 500}},
	{"CountExpired", []any{50, 1, 1000}},
	{"LockExpired", nil},
	{"SelectShadowed", []any{0, 500}},
	{"Blobs.SelectReferred", nil},
	{"Steps.SelectExpired", nil},
	{"Remedy.CountStatus", []any{1, 1, 1000}},
	{"Remedy.CountStatus", []any{1, 7, 1000}},
	{"Remedy.CountLapsed", []any{1, 1, 1, 2, 1000}},
	{"Remedy.CountDue", []any{1, 1, 1000}},
	{"Remedy.SelectOldest", []any{1, 1}},
	{"Queue.StoreMessage", nil},
	{"Queue.LeaseMessages", nil},
	{"Queue.LeaseOut", nil},
	{"Queue.Unlease", nil},
	{"Queue.HandOut", nil},
	{"Queue.ExtendLeases", nil},
	{"Queue.PutBack", nil},
	{"Queue.MoveLeased", nil},
	{"Queue.ParkLeased", nil},
	{"Queue.NameLeased", nil},
	{"Queue.SettleLeased", nil},
	{"Queue.CompleteLeased", nil},
	{"Queue.CompleteClaim", nil},
	{"Queue.DeleteLeased", nil},
	{"Queue.CloseLeased", nil},
	{"TouchMessage", nil},
	{"MoveMessage", nil},
	{"Gate.HoldMessage", nil},
	{"Gate.ExpireHeld", nil},
	{"Gate.ReleaseHeld", []any{[]byte("r"), 1, []byte("a"), 2}},
	{"DeleteMessage", nil},
	{"DeleteMessages", nil},
	{"DeleteClaims", nil},
}

// sorting are statements that may sort what they read: LockDue what it is given; SelectFree all that is due without an
// order key, for which a queue with one takes a twentieth of its time; CountDue what a short table has.
var sorting = []string{"Queue.LockDue", "Queue.SelectFree", "Remedy.CountDue"}

// slow are looks that read past what is held: until the janitor has parked what was held too long, and where an order
// key holds as much. MariaDB takes 2 to 7 s for 2 million, the others less than 2. SQLite's SelectHeldAges reads all that is
// due, by the index alone, since payloads stand before the time: 1 to 3 s.
var slow = map[string][]string{
	"held too long":          {"Queue.SelectNextDue", "Queue.SelectDue", "Queue.SelectFront", "Remedy.CountDue"},
	"held, of one order key": {"Queue.SelectHeads"},
}

// TestNoStatementOfAQueueCostsWhatABacklogHolds: as many messages are open as fit, nobody has taken statistics, or they
// were taken now; and each statement is quick. Where they were taken when there was next to nothing, the Store takes
// them again.
func TestNoStatementOfAQueueCostsWhatABacklogHolds(t *testing.T) {
	t.Parallel()
	const never = "9000000000000000"
	n := testdb.Rounds(60_000, 2_000_000)
	shapes := []struct{ name, values string }{ // status, due_at, order_key, aggregate, version
		{"held, of one aggregate", "7, " + never + ", NULL, 'a', i"},
		{"held too long", "7, 1, NULL, 'a', i"},
		{"held, of one order key", "7, " + never + ", 'k', 'a', i"},
		{"held, of as many aggregates", "7, " + never + ", NULL, number, 9"},
		{"received", "1, 1, NULL, NULL, NULL"},
		{"received, of one order key", "1, 1, 'k', NULL, NULL"},
		{"received, of as many order keys", "1, 1, number, NULL, NULL"},
		{"to be tried again later", "4, " + never + ", 'k', NULL, NULL"},
		{"parked", "6, " + never + ", NULL, NULL, NULL"},
	}
	for _, shape := range testdb.Sample(t, 2, shapes) {
		t.Run(shape.name, func(t *testing.T) {
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				migrate(t, db, inbox.Config{})
				stock(t, db, n, shape.values)
				checkQueued(t, db, shape.name, "without statistics")
				for _, table := range []string{"millrace_messages", "millrace_claims"} {
					db.Do(t, map[string]string{"postgres": "ANALYZE ", "mysql": "ANALYZE TABLE ", "sqlite": "ANALYZE "}[db.Dialect]+table)
				}
				checkQueued(t, db, shape.name, "with statistics")
			})
		})
	}
}

func checkQueued(t *testing.T, db *testdb.DB, shape, when string) {
	t.Helper()
	d := dialectOf(t, db)
	all := statements(d)
	for _, s := range queued {
		if strings.Contains(shape, "order key") && s.name == "Queue.SelectDue" {
			continue // it is for what stands in no line
		}
		query, args := all[s.name], s.args
		require.NotEmpty(t, query, s.name)
		if args == nil {
			args = hot[s.name]
		}
		if strings.Contains(query, "(?)") {
			var err error
			query, args, err = d.In(query, args...)
			require.NoError(t, err)
		}
		steps := explain(t, db, query, args)
		plan := strings.Join(steps, "\n")
		if db.Dialect == "postgres" && !slices.Contains(sorting, s.name) {
			assert.False(t, sortsRows(steps), "%s, %s: it reads all before it returns the first\n%s", s.name, when, plan)
		}
		assert.NotContains(t, plan, "JIT", "%s, %s: it is compiled each time", s.name, when)
		began := time.Now()
		drain(t, db, query, args)
		if testdb.Long() && s.name != "Queue.SelectFree" && !slices.Contains(slow[shape], s.name) &&
			(db.Dialect != "sqlite" || s.name != "Gate.SelectHeldAges") {
			assert.Less(t, time.Since(began), 2*time.Second, "%s, %s %v\n%s", s.name, when, s.args, plan)
		}
	}
}

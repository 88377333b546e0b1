package tests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/testdb"
)

// stock gives consumer 1 n open messages with their claims. The message ids are the numbers from 1 to n.
func stock(t *testing.T, db *testdb.DB, n int, values string) {
	t.Helper()
	number := db.Bytes("i")
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
			table, columns[0], number, strings.ReplaceAll(columns[1], "number", number), db.Numbers(n)))
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
	{"Queue.SelectKeys", nil},
	{"Queue.SelectNextDue", []any{1, 1000, 1, 1000}},
	{"Queue.SelectDue", []any{1, 64}},
	{"Queue.SelectFront", []any{1, 1000, 256, true, 1, 1000, 64}},
	{"Queue.SelectFront", []any{1, 1000, 256, false, 1, 1000, 64}},
	{"Queue.SelectHeads", []any{true, 1, []byte{}, 256}},
	{"Queue.SelectHeads", []any{false, 1, []byte{}, 256}},
	{"Queue.LockDue", nil},
	{"Queue.SelectSettled", nil},
	{"Queue.SelectOpen", []any{1}},
	{"Queue.SelectFirst", []any{1, 1, 1000}},
	{"Queue.SelectFirst", []any{1, 7, 1000}},
	{"Queue.SelectAdoptable", []any{1, 100}},
	{"Gate.SelectHeldAges", []any{1, 0, 500}},
	{"Gate.SelectExpired", nil},
	{"Gate.LockHeld", nil},
	{"Gate.CountHeld", []any{1, []byte("a"), 1000}},
	{"Gate.SelectHeld", []any{1, []byte("a"), 500}},
	{"SelectClaimsPage", []any{1, []byte{}, 500}},
	{"CountExpired", []any{50, 1, 1000}},
	{"LockExpired", nil},
	{"SelectShadowed", []any{0, 500}},
	{"Blobs.SelectReferred", nil},
	{"Steps.SelectExpired", nil},
	{"Remedy.CountStatus", []any{1, 1, 1000}},
	{"Remedy.CountStatus", []any{1, 7, 1000}},
	{"Remedy.CountLapsed", []any{1, 1, 1, 2, 1000}},
	{"Remedy.CountDue", []any{1, 1, 1000, 1, 1, 1000}},
	{"Remedy.SelectOldest", []any{1, 1, 1, 4, 1000}},
	{"Queue.StoreMessage", nil},
	{"Queue.LeaseMessages", nil},
	{"Queue.LeaseOut", nil},
	{"Queue.Unlease", nil},
	{"Queue.HandOut", nil},
	{"Queue.ExtendLeases", nil},
	{"Queue.PutBack", nil},
	{"Queue.HoldLeased", nil},
	{"Queue.MoveLeased", nil},
	{"Queue.ParkLeased", nil},
	{"Queue.NameLeased", nil},
	{"Queue.SettleLeased", nil},
	{"Queue.CompleteLeased", nil},
	{"Queue.CompleteClaim", nil},
	{"Queue.DropOpenClaim", nil},
	{"Queue.DropLeased", nil},
	{"Queue.JoinMessage", nil},
	{"Queue.DeleteLeased", nil},
	{"Queue.CloseLeased", nil},
	{"TouchMessage", nil},
	{"MoveMessage", nil},
	{"Gate.HoldMessage", nil},
	{"Gate.ExpireHeld", nil},
	{"Gate.ReleaseHeld", []any{[]byte("r"), 1, []byte("a"), 2}},
	{"Gate.SelectReleased", slices.Repeat([]any{1, []byte("a"), 2}, 100)},
	{"DeleteMessage", nil},
	{"Remedy.DiscardMessage", nil},
	{"DeleteMessages", nil},
	{"DeleteClaims", nil},
}

// sorting are statements that may sort what they read: LockDue what it is given, CountDue and SelectHeads what an all but
// empty index has. The time says that it is no more.
var sorting = []string{"Queue.LockDue", "Remedy.CountDue", "Queue.SelectHeads"}

// TestNoStatementOfAQueueCostsWhatABacklogHolds: as many messages are open as fit, nobody has taken statistics, or they
// were taken when there was little else, or now; and each statement is quick.
func TestNoStatementOfAQueueCostsWhatABacklogHolds(t *testing.T) {
	testdb.Turn(t, 1, seconds)
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
		{"parked, of one order key", "6, " + never + ", 'k', NULL, NULL"},
		{"parked, of one aggregate", "6, " + never + ", NULL, 'a', i"},
	}
	for _, shape := range testdb.Sample(t, 1, shapes) {
		t.Run(shape.name, func(t *testing.T) {
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				migrate(t, db, inbox.Config{})
				stock(t, db, n, shape.values)
				checkQueued(t, db, "without statistics")
				if db.Dialect == "postgres" { // whose role may not analyse them again
					db.Do(t, "TRUNCATE millrace_messages, millrace_claims")
					stock(t, db, 50, other(shape.values))
					db.Analyse(t, "millrace_messages", "millrace_claims")
					db.Do(t, "TRUNCATE millrace_messages, millrace_claims")
					stock(t, db, n, shape.values)
					checkQueued(t, db, "with statistics of when it was all but empty")
				}
				db.Analyse(t, "millrace_messages", "millrace_claims")
				checkQueued(t, db, "with statistics")
			})
		})
	}
}

// other are values of a state in which next to nothing is, where a table is full of these.
func other(values string) string {
	if values[0] == '1' {
		return "7, 1, NULL, 'a', 9"
	}
	return "1, 1, NULL, NULL, NULL"
}

func checkQueued(t *testing.T, db *testdb.DB, when string) {
	t.Helper()
	for _, s := range queued {
		args := s.args
		if args == nil {
			args = hot[s.name]
		}
		query, args := spelled(t, db, s.name, args)
		if s.name == "Gate.SelectReleased" {
			query = dialect.ForEach(query, 100)
		}
		steps := explain(t, db, query, args)
		plan := strings.Join(steps, "\n")
		if db.Dialect == "postgres" && !slices.Contains(sorting, s.name) {
			assert.False(t, sortsRows(steps), "%s, %s: it reads all before it returns the first\n%s", s.name, when, plan)
		}
		assert.NotContains(t, plan, "JIT", "%s, %s: it is compiled each time", s.name, when)
		began := time.Now()
		drain(t, db, query, args)
		if testdb.Long() {
			assert.Less(t, time.Since(began), 2*time.Second, "%s, %s %v\n%s", s.name, when, s.args, plan)
		}
	}
}

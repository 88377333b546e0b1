package tests_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/testdb"
)

// hoard puts n rows into the outbox by an expression of their number i, without statistics.
func hoard(t *testing.T, db *testdb.DB, n int, key, columns, values string) {
	t.Helper()
	if db.Dialect == "postgres" {
		db.Do(t, `ALTER TABLE millrace_outbox SET (autovacuum_enabled = off)`)
	}
	db.Do(t, fmt.Sprintf(`INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, order_key, %s)
		SELECT %s, 1, 't', 'u', 'k', %s FROM %s`, columns, key, values, db.Numbers(n)))
	db.Do(t, `INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, order_key)
		VALUES (8, 1, 't', 'u', 'l'), (9, 1, 't', 'u', 'm')`) // a planner knows that there are few keys
}

// relayed are the statements of a relay, and of the janitor in the outbox, in the order in which to
// run them, with arguments.
func relayed(token int64) []struct {
	name string
	args []any
} {
	ids := dialect.IDs([]int64{11, 12, 13})
	return []struct {
		name string
		args []any
	}{
		{"SelectPending", []any{ids, 0, 1, 1, 500}},
		{"SelectShortKeys", []any{dialect.IDs([]int64{7, 8, 9})}},
		{"SelectFirsts", []any{dialect.IDs([]int64{7, 8, 9})}},
		{"SelectDue", []any{ids, 1, 1, 500}},
		{"SelectNextDue", []any{1, 1}},
		{"SelectLaterDue", []any{1, 1}},
		{"SelectKnown", []any{dialect.IDs([]int64{1, 2, 3})}},
		{"SelectKey", []any{dialect.Key{Hash: 7, Limit: 62}}},
		{"SelectKey", []any{dialect.Key{Hash: 7, After: 1000, Limit: 62}}},
		{"SelectKey", []any{dialect.Key{Hash: 7, Limit: 62}, dialect.Key{Hash: 8, Limit: 4}, dialect.Key{Hash: 9, Limit: 4}}},
		{"ListKeys", []any{-1, 1000}},
		{"ListKeys", []any{8, 1000}},
		{"SelectHighest", []any{11}},
		{"CountBacklog", []any{1000, 1000, 1000, 1000}},
		{"HoldBack", []any{dialect.Pairs([]dialect.Row{{ID: 11}, {ID: 12}, {ID: 13}}), token}},
		{"Postpone", []any{dialect.Pairs([]dialect.Row{{ID: 14}}), 0, "why", token}},
		{"SetAside", []any{dialect.Asides([]dialect.Aside{{ID: 15, Status: 1}}), token}},
		{"KeepSent", []any{dialect.Pairs([]dialect.Row{{ID: 16}}), 0, token}},
		{"DeleteSent", []any{dialect.Pairs([]dialect.Row{{ID: 17}}), token}},
		{"PurgeSent", []any{time.Now().UnixMicro(), 1000}},
	}
}

// TestNoStatementOfARelayCostsWhatABacklogHolds: of one key as many messages are held back as fit, nobody
// has taken statistics, or they were taken when there was nothing else; and each statement is as
// quick as on an empty table.
func TestNoStatementOfARelayCostsWhatABacklogHolds(t *testing.T) {
	t.Parallel()
	const token, mostRemoved = 99, 10
	n := testdb.Rounds(15_000, 100_000)
	shapes := []struct{ name, key, columns, values string }{
		{"held behind one of their key", "7", "status, blocked_key", "2, 7"},
		{"heads of as many keys", "i", "status, blocked_key, due_at", "3, i, 1"},
		{"to be tried again later", "7", "status, due_at", "1, 9000000000000000"},
		{"sent and kept", "7", "status, due_at", "4, 9000000000000000"},
		{"pending, of one key", "7", "status", "0"},
		{"pending, of keys that have a little", "i / 3", "status", "0"},
		{"held back, of keys that hold a little", "i / 3", "status, blocked_key", "2, i / 3"},
	}
	for _, shape := range testdb.Sample(t, 1, shapes) {
		t.Run(shape.name, func(t *testing.T) {
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				migrate(t, db, inbox.Config{})
				d := dialectOf(t, db)
				_, err := db.ExecContext(t.Context(), d.Outbox.InsertRelay, token, "a relay", int64(time.Hour/time.Microsecond))
				require.NoError(t, err)
				check := func(when string) {
					byOrder := []string{"SelectKey", "SelectShortKeys", "SelectFirsts", "ListKeys"}
					if db.Dialect != "mysql" {
						byOrder = append(byOrder, "SelectPending")
					}
					for _, s := range relayed(token) {
						if lacks(d, s.name) {
							continue
						}
						query := statements(d)["Outbox."+s.name]
						args := s.args
						if s.name == "SelectKey" {
							var keys []dialect.Key
							for _, arg := range s.args {
								keys = append(keys, arg.(dialect.Key))
							}
							query, args = d.Outbox.Keys(keys)
						}
						steps := explain(t, db, query, args)
						plan := strings.Join(steps, "\n")
						if slices.Contains(byOrder, s.name) {
							assert.Contains(t, plan, "_order", "%s, %s: it finds messages of a key by their index", s.name, when)
							assert.NotContains(t, plan, "pkey", "%s, %s", s.name, when)
						}
						if slices.Contains([]string{"SelectKnown", "HoldBack", "Postpone", "SetAside", "KeepSent", "DeleteSent"}, s.name) {
							assert.NotContains(t, plan, "_status", "%s, %s: it finds its messages by their ids", s.name, when)
						}
						for _, step := range steps {
							assert.False(t, wasteful(db.Dialect, step), "%s, %s: %s\n%s", s.name, when, step, plan)
						}
						assert.NotContains(t, plan, "JIT", "%s, %s: it is compiled each time", s.name, when)
						if db.Dialect != "postgres" {
							drain(t, db, query, args)
							continue
						}
						for _, step := range explain(t, db, "(ANALYZE, TIMING OFF, SUMMARY OFF) "+query, args) {
							if _, n, is := strings.Cut(step, "Rows Removed by Filter: "); is {
								removed, err := strconv.Atoi(n)
								require.NoError(t, err)
								assert.LessOrEqual(t, removed, mostRemoved, "%s, %s: it reads what it does not want\n%s", s.name, when, plan)
							}
						}
					}
				}
				fill := func() { hoard(t, db, n, shape.key, shape.columns, shape.values) }
				fill()
				check("without statistics")
				if db.Dialect == "postgres" {
					db.Do(t, "TRUNCATE millrace_outbox")
					hoard(t, db, 1, shape.key, shape.columns, shape.values)
					db.Do(t, "VACUUM ANALYZE millrace_outbox")
					fill()
					check("with statistics of when it was all but empty")
				}
				db.Analyse(t, "millrace_outbox")
				check("with statistics")
			})
		})
	}
}

// TestALookReadsAKeyOnce: on MySQL and MariaDB, whatever reads a key passes all messages of it that were sent, as long as a
// transaction can still see them.
func TestALookReadsAKeyOnce(t *testing.T) {
	t.Parallel()
	const n = 60 // a short key
	db := testdb.On(t, "mysql")
	migrate(t, db, inbox.Config{})
	hoard(t, db, n, "7", "status", "0")
	conn, err := db.Connx(t.Context())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // of a test
	passed := func() (count int) {
		var name string
		require.NoError(t, conn.QueryRowxContext(t.Context(), `SHOW SESSION STATUS LIKE 'Handler_read_next'`).Scan(&name, &count))
		return count
	}
	before := passed()
	for _, s := range []struct {
		name string
		args []any
	}{{"SelectPending", []any{dialect.IDs([]int64{}), 0, 1, 1, 500}}, {"SelectShortKeys", []any{dialect.IDs([]int64{7})}}} {
		if query := statements(dialectOf(t, db))["Outbox."+s.name]; query != "" {
			drain(t, conn, query, s.args)
		}
	}
	assert.Less(t, passed()-before, 10*n)
}

// drain runs a statement and reads what it returns.
func drain(t *testing.T, db sqlx.QueryerContext, query string, args []any) {
	t.Helper()
	rows, err := db.QueryxContext(t.Context(), query, args...)
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
	}
	require.NoError(t, rows.Err())
}

// wasteful reports whether a step costs what the outbox holds: it reads the whole table, or more of it
// than it returns, to sort it. The tables of relays and lists are small.
func wasteful(database, step string) bool {
	small := []string{"millrace_outbox_relays", "Function Scan", "json_each", "j ", " r ", "SCAN j", "SCAN r", "SCAN (subquery-"}
	if slices.ContainsFunc(small, func(s string) bool { return strings.Contains(step, s) }) {
		return false
	}
	return scans(database, step) || sorts(step)
}

func sorts(step string) bool {
	return slices.ContainsFunc([]string{"Sort", "filesort", "TEMP B-TREE"}, func(s string) bool { return strings.Contains(step, s) })
}

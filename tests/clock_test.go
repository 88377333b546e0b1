package tests_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestWhatWaitsAfterTheClockWentBack: the statements of docs/operations.md let it go on, and touch nothing else.
func TestWhatWaitsAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(readText(t, "../docs/operations.md"), "## When the clock of the database is set\n")
	_, block, _ := strings.Cut(text, "```sql\n")
	block, _, _ = strings.Cut(block, "```")
	label := map[string]string{"postgres": "PostgreSQL", "mysql": "MySQL, MariaDB", "sqlite": "SQLite"}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		found := regexp.MustCompile(`(?m)^\| ` + label[db.Dialect] + " \\| `(.+)` \\|$").FindStringSubmatch(text)
		require.Len(t, found, 2)
		now := found[1]
		require.Contains(t, dialectOf(t, db).Now, now)
		soon, late := now+" + 60000000", now+" + 86400000000"
		b := db.Bytes
		messages := "INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at) VALUES "
		row := func(id, status, due string) string {
			return "(1, " + b(id) + ", " + status + ", " + strings.Repeat(b("1")+", ", 4) + "1, 1, " + due + ")"
		}
		db.Do(t, messages+row("1", "1", late)+", "+row("2", "2", late)+", "+row("3", "4", late)+", "+row("4", "4", soon)+", "+row("5", "7", late))
		db.Do(t, "INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, status, due_at) VALUES (1, 1, 't', 'u', 1, "+late+
			"), (1, 1, 't', 'u', 1, "+soon+"), (1, 1, 't', 'u', 4, "+late+")")
		step := func(id, state, until string) string {
			return "(" + strings.Repeat(b(id)+", ", 5) + "0, " + state + ", 1, " + until + ", 1)"
		}
		db.Do(t, "INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at) VALUES "+
			step("1", "1", late)+", "+step("2", "1", soon)+", "+step("3", "2", late))
		outcome := func(id, at string) string { return "(1, " + b(id) + ", " + at + ", " + b("1") + ", " + b("1") + ")" }
		db.Do(t, "INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages) VALUES "+outcome("1", late)+", "+outcome("2", "1"))
		db.Do(t, "INSERT INTO millrace_leases (consumer, message_id, token, until) VALUES (1, "+b("1")+", 7, "+late+"), (1, "+b("2")+", 7, "+soon+
			"), (1, "+b("3")+", 0, "+late+")")
		db.Do(t, "INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (1, 'r', 1, "+late+"), (2, 's', 1, "+soon+")")

		statements := strings.Split(strings.TrimSuffix(strings.TrimSpace(block), ";"), ";\n")
		require.Len(t, statements, 6)
		for _, s := range statements {
			db.Do(t, strings.ReplaceAll(s, "{now}", now))
		}

		for query, want := range map[string]int{
			"messages WHERE status <> 7 AND due_at <= " + now: 3,
			"messages WHERE due_at > " + now:                  2,
			"outbox WHERE due_at <= " + now:                   1,
			"steps WHERE until <= " + now:                     1,
			"outcomes WHERE created_at <= " + now:             2,
			"leases":                                          2,
			"outbox_relays":                                   1,
		} {
			assert.Equal(t, want, db.Count(t, "SELECT COUNT(*) FROM millrace_"+query), query)
		}
	})
}

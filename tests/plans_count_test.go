package tests_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestTheOutboxIsCountedByItsIndexes: so that a count ends at its limit, however many were sent.
func TestTheOutboxIsCountedByItsIndexes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		for _, states := range []string{"CASE WHEN i % 20 < 5 THEN i % 5 ELSE 0 END", "CASE WHEN i % 20 < 5 THEN i % 5 ELSE 4 END"} {
			db.Do(t, `DELETE FROM millrace_outbox`)
			db.Do(t, `
				INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, status, due_at)
				WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 79)
				SELECT i, i, 't', 'u', `+states+`, CASE WHEN `+states+` = 0 THEN 0 ELSE i END
				FROM (SELECT a.j * 80 + b.j + 1 AS i FROM n a CROSS JOIN n b) numbers`)
			db.Analyse(t, "millrace_outbox")
			steps := explain(t, db, dialectOf(t, db).Outbox.CountBacklog, []any{11, 11, 11, 11})
			plan := strings.Join(steps, "\n")
			by := map[string]string{
				"postgres": "ix_millrace_outbox_status", "mysql": "key=by_status", "sqlite": "USING INDEX ix_millrace_outbox_status",
			}[db.Dialect]
			want := 5 // the last one for the keys that parked ones block
			if db.Dialect == "postgres" {
				want = 4
				assert.Contains(t, plan, "ix_millrace_outbox_pending")
			}
			assert.Equal(t, want, strings.Count(plan, by), plan)
			for _, step := range steps {
				assert.False(t, scans(db.Dialect, step) || sorts(step), "%s\n%s", step, plan)
			}
		}
	})
}

// TestWhatIsHeldIsFoundBehindABacklog: the look for what was held too long, and the count of what an aggregate holds, read
// what is held and nothing of what is due, without statistics, too.
func TestWhatIsHeldIsFoundBehindABacklog(t *testing.T) {
	t.Parallel()
	wide := testdb.Rounds(20, 126) // 8000 messages, or 2 million
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		db.Do(t, fmt.Sprintf(`
			INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at,
				aggregate, version)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < %[1]d - 1)
			SELECT 1, %[2]s, CASE WHEN i %% 1000 = 0 THEN 7 ELSE 1 END, %[2]s, %[2]s, %[2]s, %[2]s, 1, i, i,
				CASE WHEN i %% 1000 = 0 THEN %[2]s END, i
			FROM (SELECT (a.j * %[1]d + b.j) * %[1]d + c.j + 1 AS i FROM n a CROSS JOIN n b CROSS JOIN n c) numbers`, wide, db.Bytes("i")))
		all := statements(dialectOf(t, db))
		ages := map[string]string{"postgres": "messages_status", "mysql": "messages_status", "sqlite": "messages_ages"}[db.Dialect]
		for name, index := range map[string]string{"Gate.SelectHeldAges": ages, "Gate.CountHeld": "messages_held", "Gate.SelectHeld": "messages_held"} {
			steps := explain(t, db, all[name], hot[name])
			plan := strings.Join(steps, "\n")
			assert.Contains(t, plan, indexOf(db, index), "%s\n%s", name, plan)
			assert.False(t, sortsRows(steps), "%s\n%s", name, plan)
		}
		var ids []struct {
			ID      int64
			Expired bool
		}
		require.NoError(t, db.SelectContext(t.Context(), &ids, all["Gate.SelectHeldAges"], 1, 0, 1_000_000))
		assert.Len(t, ids, wide*wide*wide/1000)
	})
}

// TestARetryOfManyGoesByTheirKeys: MariaDB would rather read all of a small table, and lock the rows of others.
func TestARetryOfManyGoesByTheirKeys(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	migrate(t, db, inbox.Config{})
	db.Do(t, `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at)
		SELECT 1, i, CASE WHEN i % 50 = 0 THEN 1 ELSE 6 END, i, i, i, i, 1, i, i FROM `+db.Numbers(300))
	keys := make([][]byte, 100)
	for i := range keys {
		keys[i] = fmt.Append(nil, i)
	}
	query, args := spelled(t, db, "Remedy.RetryMessages", []any{[]byte("r"), 1, 1, keys, 6})
	assert.Contains(t, strings.Join(explain(t, db, query, args), "\n"), indexOf(db, "messages_key"))
}

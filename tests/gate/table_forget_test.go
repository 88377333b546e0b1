package gate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var forgetBodies = []testdb.Body{
	{Name: "a rebuild of a consumer with many aggregates", Why: "Forget goes through them, and through what they hold, a page at a time", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.queued(b.store)
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 1), change("a", 3))
		for table, columns := range map[string][2]string{
			"versions": {"consumer, aggregate, version, first_version, token, message_id, payload_hash", "m.consumer, %s, 1, 1, 1, 'm', 1"},
			"messages": {
				"consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, aggregate, version",
				"m.consumer, %[1]s, 7, 't', %[1]s, m.metadata, 'p', 1, 1, 1, %[1]s, 3",
			},
		} {
			b.db.Do(t, fmt.Sprintf(`
				INSERT INTO millrace_%s (%s)
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 980)
				SELECT %s FROM n CROSS JOIN (SELECT consumer, metadata FROM millrace_messages WHERE version = 3 LIMIT 1) m`,
				table, columns[0], fmt.Sprintf(columns[1], b.db.Bytes("i"))))
		}
		require.Equal(t, 981, b.open(admin.Held))
		pool := faults.Open(t, b.db)
		most := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "millrace_versions") || strings.Contains(call, "UPDATE millrace_messages") {
				most = max(most, strings.Count(call, ",")) // as many as it names
			}
			return nil
		}})
		require.NoError(t, admin.New(rig.NewStore(t, pool.DB, inbox.Config{})).Forget(t.Context(), consumer, 0, admin.Operator{Name: "ada", Reason: "rebuild"}))
		assert.Zero(t, b.open(admin.Held))
		assert.Equal(t, 981, b.open(admin.Received))
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_versions`))
		assert.InDelta(t, 500, most, 5, "no statement changes more")
	})},
}

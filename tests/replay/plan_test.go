package replay_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/testdb"
)

var planBodies = []testdb.Body{
	{Name: "a plan of several pages", Why: "of messages with one key a consumer handles one, wherever they are", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(120)
		var uuids []string
		require.NoError(t, b.db.SelectContext(t.Context(), &uuids, `SELECT uuid FROM millrace_outbox ORDER BY id`))
		for i, uuid := range uuids[:10] {
			b.exec(`UPDATE millrace_outbox SET uuid = ? WHERE uuid = ?`, uuid, uuids[100+i])
		}
		numbered := millrace.Inbox{Store: b.store, Consumer: "numbered", Key: inbox.ByMetadata("correlation_id")}.Middleware(b.mail)
		first, err := b.out.Archive(t.Context(), outbox.ArchiveFilter{}, 0, 5)
		require.NoError(t, err)
		for i, handled := range first {
			_, err := b.projection(handled.Message)
			require.NoError(t, err)
			if i < 3 {
				_, err = numbered(handled.Message)
				require.NoError(t, err)
			}
		}
		plan := b.plan(b.request("one"))
		assert.Equal(t, 120, plan.LookedAt)
		got := map[string][]int{}
		for _, f := range plan.Consumers {
			got[f.Name] = []int{f.Completed, f.New}
		}
		assert.Equal(t, map[string][]int{"projection": {5, 120 - 10 - 5}, "numbered": {3, 120 - 3}}, got)
	})},
}

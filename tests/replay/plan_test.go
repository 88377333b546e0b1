package replay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
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
	{Name: "a filter that its row cannot hold", Why: "it is refused, and one row hides no other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.archived(1)
		r := b.request("odd")
		r.Filter = replay.Filter{Until: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), IDs: []string{"\xff"}}
		_, err := b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, "Until 10000-01-01 00:00:00 +0000 UTC is outside of the years 0 to 9999")
		require.ErrorContains(t, err, `IDs: "\xff" is not UTF-8`)
		r.Filter = replay.Filter{Since: time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("east", 3600))}
		_, err = b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, "Since 0000-01-01 00:00:00 +0100 east is outside")
		b.run(b.request("broken"))
		b.run(b.request("whole"))
		b.exec(`UPDATE millrace_replays SET spec = 'json: error' WHERE name = ?`, []byte("broken"))
		all, err := b.replayer().List(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, all, 2)
		assert.Equal(t, "outbox", all[0].Spec.Target)
		assert.Equal(t, "broken", all[1].Name)
		assert.Equal(t, replay.Spec{Source: "archive"}, all[1].Spec)
		_, err = b.replayer().Status(t.Context(), "broken")
		require.ErrorContains(t, err, "read the request")
	})},
	{Name: "which are meant", Why: "by topic, time and id", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(10)
		b.exec(`UPDATE millrace_outbox SET status = 4, sent_at = created_at, created_at = id * 1000000`)
		b.exec(`UPDATE millrace_outbox SET topic = 'other' WHERE id = 10`)
		b.exec(`UPDATE millrace_outbox SET topic = 'orders ' WHERE id = 9`)
		var uuids []string
		require.NoError(t, b.db.SelectContext(t.Context(), &uuids, `SELECT uuid FROM millrace_outbox ORDER BY id`))
		for name, c := range map[string]struct {
			filter replay.Filter
			want   []string
		}{
			"all":   {replay.Filter{}, uuids},
			"topic": {replay.Filter{Topic: "orders"}, uuids[:8]},
			"space": {replay.Filter{Topic: "orders "}, uuids[8:9]},
			"since": {replay.Filter{Since: time.UnixMicro(8_000_000)}, uuids[7:]},
			"until": {replay.Filter{Until: time.UnixMicro(3_000_000)}, uuids[:2]},
			"id":    {replay.Filter{IDs: []string{uuids[4], uuids[6]}}, []string{uuids[4], uuids[6]}},
			"none":  {replay.Filter{Topic: "nothing"}, nil},
		} {
			to := &sink{}
			r := replay.Request{Name: name, From: replay.Archive(b.out), To: replay.Publisher(to), Filter: c.filter, By: ada, PerSecond: 100}
			plan, err := b.replayer().Plan(t.Context(), r)
			require.NoError(t, err, name)
			if name == "all" {
				assert.Len(t, plan.Topics, 3)
			}
			assert.Equal(t, len(c.want), plan.LookedAt, name)
			status, err := b.replayer().Run(t.Context(), r)
			require.NoError(t, err, name)
			assert.Equal(t, len(c.want), status.Sent, name)
			var got []string
			for _, msg := range to.Messages() {
				got = append(got, msg.UUID)
			}
			assert.Equal(t, c.want, got, name)
		}
	})},
}

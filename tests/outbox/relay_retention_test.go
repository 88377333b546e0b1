package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayRetentionBodies = []testdb.Body{
	{
		Name: "sent messages are kept", Why: "for their retention, then Purge, the relay and the inbox's janitor delete them",
		Run: retention,
	},
}

func retention(t *testing.T, db *testdb.DB) {
	p, b, seen := newPost(t, db), newStrict(t), &events{}
	store, err := inbox.NewStore(db.DB, inbox.Config{})
	require.NoError(t, err)
	send := func(keep time.Duration) []string {
		relay := p.newRelay(b, func(c *outbox.RelayConfig) { c.Retention = keep })
		ids := p.store("orders", append(b.letters("k", 3), b.letters("", 2)...)...)
		n, err := relay.RelayBatch(t.Context())
		require.NoError(t, err)
		require.Equal(t, 5, n)
		return ids
	}
	forever, hour := send(outbox.Forever), send(time.Hour)
	for _, r := range p.table() {
		assert.Equal(t, rowSent, r.Status)
		require.NotNil(t, r.SentAt)
		assert.Nil(t, r.Blocked)
	}
	relay := p.newRelay(b)
	purge := func() int {
		n, err := relay.Purge(t.Context())
		require.NoError(t, err)
		return n
	}
	assert.Zero(t, purge(), "nothing is old enough")

	send(time.Millisecond)
	rig.Eventually(p, "Purge deletes them", func() bool { purge(); return p.rows() == 10 })
	send(time.Millisecond)
	rig.Eventually(p, "the inbox's janitor deletes them", func() bool {
		_, err := store.Purge(t.Context())
		assert.NoError(t, err)
		return p.rows() == 10
	})
	send(time.Millisecond)
	rig.Eventually(p, "a relay that runs deletes them", func() bool {
		running := p.relayTo(b, seen.observe, func(c *outbox.RelayConfig) { c.Retention = time.Hour })
		told := len(seen.of("purged"))
		rig.Eventually(p, "the relay tells", func() bool { return len(seen.of("purged")) > told })
		require.NoError(t, running.stop())
		return p.rows() == 10
	})
	purged := 0
	for _, e := range seen.of("purged") {
		assert.Equal(t, "retention", e.Reason)
		purged += e.Count
	}
	assert.Equal(t, 5, purged)

	_, err = db.ExecContext(t.Context(), `UPDATE millrace_outbox SET due_at = due_at - 7200000000, sent_at = sent_at - 7200000000`)
	require.NoError(t, err)
	assert.Equal(t, 5, purge(), "two hours later")
	left := make(map[string]bool)
	for _, r := range p.table() {
		left[r.UUID] = true
	}
	assert.Len(t, left, 5)
	for _, id := range forever {
		assert.True(t, left[id])
	}
	b.once(append(forever, hour...))
	backlog, err := p.out.Backlog(t.Context(), outbox.BacklogOptions{})
	require.NoError(t, err)
	assert.Zero(t, backlog.Unsent().N, "what was sent is not to be sent")
}

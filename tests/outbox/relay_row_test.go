package outbox_test

import (
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayRowBodies = []testdb.Body{
	{Name: "rows that are no messages", Why: "somebody else's mistake is parked in its turn, and stops nobody", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newStrict(t)
		msgs := b.letters("k", 5)
		b.excuse(msgs[2])
		alone := b.letters("", 1)
		all := p.store("orders", append(append(msgs, alone...), b.letters("", 5)...)...)
		for _, id := range []string{all[2], all[5]} {
			db.Do(t, `UPDATE millrace_outbox SET metadata = '{"n": 1' WHERE uuid = ?`, id)
		}
		p.relayTo(b)
		b.awaitAll([]string{all[0], all[1], all[6], all[7], all[8], all[9], all[10]})
		parked := p.awaitParked(all[2])
		assert.Contains(t, parked.Error, "metadata")
		assert.Empty(t, parked.Message.Metadata)
		assert.Zero(t, parked.Attempts)
		p.awaitParked(all[5])
		p.awaitStatus(all[3], rowHeld)
		p.awaitStatus(all[4], rowHeld)
		later := p.store("orders", b.letters("k", 1)...)
		p.awaitStatus(later[0], rowHeld)

		require.NoError(t, p.out.Discard(t.Context(), parked.ID, ann))
		b.awaitAll(append(all[3:5], later...))
		assert.Zero(t, b.given(all[2]), "the publisher never saw it")
	}},
	{Name: "a row without metadata", Why: "a decorator of the publisher may set some; a payload that is NULL is nil", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newMemoryBroker()
		db.Do(t, `INSERT INTO millrace_outbox (key_hash, topic, uuid, created_at) VALUES (7, 'orders', 'bare', 0)`)
		marked, err := message.MessageTransformPublisherDecorator(func(m *message.Message) { m.Metadata.Set("mark", "set") })(b)
		require.NoError(t, err)
		p.relayTo(marked)
		b.awaitAll(t, []string{"bare"})
		assert.Equal(t, message.Metadata{"mark": "set"}, b.sent[0].Metadata)
		assert.Nil(t, b.sent[0].Payload)
	}},
	{Name: "a row with a strange hash", Why: "it is refused if no shard has it", Run: func(t *testing.T, db *testdb.DB) {
		p, b := newPost(t, db), newStrict(t)
		all := p.store("orders", b.letters("", 4)...)
		for i, hash := range []int64{-1, -3, math.MinInt64, math.MaxInt64} {
			db.Do(t, `UPDATE millrace_outbox SET key_hash = ? WHERE uuid = ?`, hash, all[i])
		}
		p.relayTo(b)
		b.awaitAll(all)
	}},
}

var relayRetentionBodies = []testdb.Body{
	{
		Name: "sent messages are kept", Why: "for their retention, then Purge, the relay and the inbox's janitor delete them",
		Run: retention,
	},
}

func retention(t *testing.T, db *testdb.DB) {
	p, b, seen := newPost(t, db), newStrict(t), &events{}
	store := rig.NewStore(t, db.DB, inbox.Config{})
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
		rig.Purge(t, store)
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

	db.Do(t, `UPDATE millrace_outbox SET due_at = due_at - 7200000000, sent_at = sent_at - 7200000000`)
	assert.Equal(t, 5, purge(), "two hours later")
	var left []string
	for _, r := range p.table() {
		left = append(left, r.UUID)
	}
	assert.ElementsMatch(t, forever, left)
	b.once(append(forever, hour...))
	assert.Zero(t, backlog(p).Unsent().N, "what was sent is not to be sent")
}

package outbox_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

var relayRowBodies = []testdb.Body{
	{
		Name: "rows that are no messages", Why: "somebody else's mistake is parked in its turn, and stops nobody",
		Run: brokenRows,
	},
	{
		Name: "a row without metadata", Why: "what is NULL is nil",
		Run: bareRow,
	},
	{
		Name: "a row with a strange hash", Why: "it is refused if no shard has it",
		Run: strangeHashes,
	},
}

func brokenRows(t *testing.T, db *testdb.DB) {
	ctx := t.Context()
	p, b := newPost(t, db), newStrict(t)
	msgs := b.letters("k", 5)
	b.excuse(msgs[2])
	alone := b.letters("", 1)
	all := p.store("orders", append(append(msgs, alone...), b.letters("", 5)...)...)
	for _, id := range []string{all[2], all[5]} {
		_, err := db.ExecContext(ctx, db.Rebind(`UPDATE millrace_outbox SET metadata = '{"n": 1' WHERE uuid = ?`), id)
		require.NoError(t, err)
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

	require.NoError(t, p.out.Discard(ctx, parked.ID, ann))
	b.awaitAll(append(all[3:5], later...))
	assert.Zero(t, b.given(all[2]), "the publisher never saw it")
}

func strangeHashes(t *testing.T, db *testdb.DB) {
	p, b := newPost(t, db), newStrict(t)
	all := p.store("orders", b.letters("", 4)...)
	for i, hash := range []int64{-1, -3, math.MinInt64, math.MaxInt64} {
		_, err := db.ExecContext(t.Context(), db.Rebind(`UPDATE millrace_outbox SET key_hash = ? WHERE uuid = ?`), hash, all[i])
		require.NoError(t, err)
	}
	p.relayTo(b)
	b.awaitAll(all)
}

func bareRow(t *testing.T, db *testdb.DB) {
	p, b := newPost(t, db), newMemoryBroker()
	_, err := db.ExecContext(t.Context(), `INSERT INTO millrace_outbox (key_hash, topic, uuid, created_at)
		VALUES (7, 'orders', 'bare', 0)`)
	require.NoError(t, err)
	p.relayTo(b)
	b.awaitAll(t, []string{"bare"})
	assert.Nil(t, b.sent[0].Metadata)
	assert.Nil(t, b.sent[0].Payload)
}

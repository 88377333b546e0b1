package original_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// upgradeBodies: what was hashed by the payload that the inbox saw is known by that one as well.
// Without the plugin, the inbox sees no other.
var upgradeBodies = []testdb.Body{
	{Name: "a claim by the unpacked payload", Why: "a copy is a duplicate, and no collision", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		handle := func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }
		msg := change(1)
		_, err := chain(handle, unlock, b.inbox())(fresh(msg))
		require.NoError(t, err)
		b.store = b.newStore()
		b.serve(nil, handle, unlock, b.inbox()).deliver(msg, msg)
		b.store = b.newStore()
		b.serve(b.durable(pubsub.StoreOnFailure), handle, unlock, b.inbox()).deliver(msg)
		assert.Equal(t, 3, b.events.Count("duplicate"))
		b.store = b.newStore()
		b.serve(b.durable(pubsub.StoreFirst), handle, unlock, b.inbox()).deliver(msg)
		rig.Eventually(b, "the table is empty", func() bool { return b.rows() == 0 })
		assert.Len(t, b.effects(), 1)
		b.noCollision()
	}},
	{Name: "a recorded failure by the unpacked payload", Why: "the next attempt takes it up", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		msg := change(1)
		_, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, errBoom }, unlock, b.inbox(recording))(fresh(msg))
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, 1, b.rows())
		b.store = b.newStore()
		handle := func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }
		b.serve(nil, handle, unlock, b.inbox(recording)).deliver(msg)
		assert.Len(t, b.effects(), 1)
		assert.Zero(t, b.rows())
		b.noCollision()
	}},
	{Name: "a version by the unpacked payload", Why: "once the claim is forgotten, its own copy is stale", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		handle := func(msg *message.Message) ([]*message.Message, error) { return nil, apply(msg) }
		gate := millrace.VersionGate{}.Middleware
		msg := change(1)
		_, err := chain(handle, unlock, b.inbox(), gate)(fresh(msg))
		require.NoError(t, err)
		_, err = b.db.ExecContext(t.Context(), `DELETE FROM millrace_claims`)
		require.NoError(t, err)
		b.store = b.newStore()
		b.serve(nil, handle, unlock, b.inbox(), gate).deliver(msg)
		assert.Len(t, b.effects(), 1)
		assert.Zero(t, b.rows())
		assert.Equal(t, 1, b.events.Count("stale"))
	}},
}

package durable_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestOperatorsCorrectPayloads(t *testing.T) {
	testdb.Conformance(t, replaceBodies)
}

var replaceBodies = []testdb.Body{
	{Name: "a corrected payload", Why: "runs once; a copy with the old one is a collision", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		id := b.find(admin.Filter{})[0].ID
		require.ErrorContains(t, admin.New(b.store).ReplacePayload(t.Context(), id, []byte("right"), ada), "AllowPayloadChange")
		allowed := rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true})
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, nil, ada), "nil")
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, make([]byte, admin.MaxPayload+1), ada), "more than")
		require.Error(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("right"), admin.Operator{}))
		require.ErrorIs(t, admin.New(allowed).ReplacePayload(t.Context(), id+1, []byte("right"), ada), inbox.ErrNotFound)
		require.ErrorContains(t, admin.New(allowed).ReplacePayload(t.Context(), id, msgs[0].Payload, ada), "has that payload")
		assert.Zero(t, b.audited("replace payload"))

		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("wrong again"), ada))
		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte("right"), ada))
		assert.Equal(t, "right", string(b.find(admin.Filter{})[0].Payload))
		story := rig.Story(t, b.store, msgs[0].UUID)
		require.Len(t, story.Audit, 2)
		assert.Regexp(t, `payload hash [0-9a-f]{16} is now [0-9a-f]{16}$`, story.Audit[1].Detail)

		s.mended.Store(true)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), id, ada, nil))
		rig.Eventually(b, "it is handled", func() bool { return b.rows() == 0 })
		right := msgs[0].Copy()
		right.Payload = []byte("right")
		assert.True(t, s.deliver(right), "a copy of what was handled")
		rig.Eventually(b, "the copy is closed", func() bool { return b.rows() == 0 })
		assert.True(t, s.deliver(msgs[0]), "a late copy of what was stored first")
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		assert.Equal(t, msgs[0].UUID, b.find(admin.Filter{})[0].Original)
		assert.Equal(t, 1, b.effects(msgs[0]))
	})},
	{Name: "a sealed payload that is corrected", Why: "it is sealed again, and kept elsewhere where it is large", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		codec, err := payload.NewAESGCM(&subjects{})
		require.NoError(t, err)
		store := b.storeWith(inbox.Config{Payloads: codec, BlobsAbove: 1000, AllowPayloadChange: true})
		msg := of("alice", secret)
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		large := bytes.Repeat([]byte("right"), 1000)
		var got atomic.Value
		durable := storeFirst(store)
		durable.MaxAttempts = 1
		s := b.inboxed(durable, func(msg *message.Message) error {
			if len(msg.Payload) < len(large) {
				return errBoom
			}
			got.Store([]byte(msg.Payload))
			return effect(msg)
		})
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		id := b.only(store, admin.Parked).ID
		require.NoError(t, admin.New(store).ReplacePayload(t.Context(), id, large, ada))
		assert.Equal(t, large, b.only(store, admin.Parked).Payload)
		assert.Empty(t, b.stored(), "it is kept elsewhere")
		var blob []byte
		require.NoError(t, b.db.GetContext(t.Context(), &blob, `SELECT body FROM millrace_blobs`))
		assert.NotContains(t, string(blob), "right")
		require.NoError(t, admin.New(store).Retry(t.Context(), id, ada, s.published))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 })
		assert.Equal(t, large, got.Load())
	})},
	{Name: "a late copy of what was corrected and not yet tried", Why: "a collision too: nothing puts the old payload back", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s, msgs := b.stuck(1)
		id := b.find(admin.Filter{})[0].ID
		allowed := rig.NewStore(t, b.db.DB, inbox.Config{AllowPayloadChange: true})
		require.NoError(t, admin.New(allowed).ReplacePayload(t.Context(), id, []byte{}, ada), "empty is not nil")
		assert.True(t, s.deliver(msgs[0]))
		assert.Len(t, b.find(admin.Filter{Status: admin.Parked}), 1)
		assert.Len(t, b.find(admin.Filter{Status: admin.FailedTerminal}), 1)
	})},
}

package durable_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPayloadsAreShownOnDemand(t *testing.T) {
	testdb.Conformance(t, revealBodies)
}

// revealed lists who looked at the payload of a message.
func (b *bed) revealed(messageID string) []admin.Operator {
	b.Helper()
	var by []admin.Operator
	for _, a := range rig.Story(b, b.store, messageID).Audit {
		if a.Action == "reveal" {
			by = append(by, a.Operator)
		}
	}
	return by
}

var revealBodies = []testdb.Body{
	{Name: "who looked at a payload", Why: "no look without a name, and no name without a look", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		require.NoError(t, b.queue(b.store).Put(t.Context(), "orders", msg))
		id := b.only(b.store, admin.Received).ID
		for _, nobody := range []admin.Operator{{}, {Name: "ada"}} {
			_, err := admin.New(b.store).Reveal(t.Context(), id, nobody)
			require.ErrorContains(t, err, "needs a Name and a Reason")
		}
		assert.Empty(t, b.revealed(msg.UUID))
		m, err := admin.New(b.store).Reveal(t.Context(), id, ada)
		require.NoError(t, err)
		assert.Equal(t, []byte(msg.Payload), m.Payload)
		assert.Equal(t, msg.Metadata, m.Metadata)
		assert.NoError(t, m.Unreadable)
		assert.Equal(t, []admin.Operator{ada}, b.revealed(msg.UUID))

		_, err = admin.New(b.store).Reveal(t.Context(), id+1, ada)
		require.ErrorIs(t, err, inbox.ErrNotFound)
		other := rig.NewStore(t, b.db.DB, inbox.Config{Namespace: "other"})
		_, err = admin.New(other).Reveal(t.Context(), id, ada)
		require.ErrorIs(t, err, inbox.ErrNotFound)
		_, err = admin.New(other).Message(t.Context(), id)
		require.ErrorIs(t, err, inbox.ErrNotFound)
		assert.Equal(t, 1, b.audited("reveal"))
	})},
	{Name: "a list without payloads", Why: "a page of large messages is a page of small rows", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		sealing := b.sealing(new(subjects), inbox.Config{BlobsAbove: 100})
		require.NoError(t, b.queue(b.store).Put(t.Context(), "orders", of("ada", "plain")))
		require.NoError(t, b.queue(sealing).Put(t.Context(), "orders", of("bob", "sealed"), of("cy", string(make([]byte, 1000)))))
		whole := rig.Find(t, sealing, admin.Filter{})
		listed, err := admin.New(b.store).Search(t.Context(), admin.Filter{}, 0, 10, 0)
		require.NoError(t, err)
		list := listed.Messages
		require.Len(t, list, 3)
		for i, m := range list {
			require.NoError(t, whole[i].Unreadable)
			assert.NotEmpty(t, whole[i].Payload)
			assert.Nil(t, m.Payload)
			assert.NoError(t, m.Unreadable, "nobody tried")
			assert.Equal(t, whole[i].ID, m.ID)
			assert.Equal(t, whole[i].UUID, m.UUID)
			assert.Equal(t, whole[i].Metadata, m.Metadata)
			assert.Equal(t, whole[i].ReceivedAt, m.ReceivedAt)
			one, err := admin.New(b.store).Message(t.Context(), m.ID)
			require.NoError(t, err)
			assert.Equal(t, m.UUID, one.UUID)
			assert.Nil(t, one.Payload)
			revealed, err := admin.New(sealing).Reveal(t.Context(), m.ID, ada)
			require.NoError(t, err)
			assert.Equal(t, whole[i].Payload, revealed.Payload)
		}
		page, err := admin.New(b.store).Search(t.Context(), admin.Filter{}, list[0].ID, 1, 0)
		require.NoError(t, err)
		require.Len(t, page.Messages, 1)
		assert.Equal(t, list[1].ID, page.Messages[0].ID)
		assert.Equal(t, list[1].ID, page.Next)
		_, err = admin.New(b.store).Search(t.Context(), admin.Filter{}, 0, 0, 0)
		require.ErrorContains(t, err, "is not between")
	})},
	{Name: "a payload that cannot be shown", Why: "the message is, and says why", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		keys := new(subjects)
		sealing := b.sealing(keys)
		require.NoError(t, b.queue(sealing).Put(t.Context(), "orders", of("ada", "secret")))
		id := b.only(b.store, admin.Received).ID
		reveal := func(store *inbox.Store) admin.Message {
			m, err := admin.New(store).Reveal(t.Context(), id, ada)
			require.NoError(t, err)
			return m
		}
		assert.ErrorContains(t, reveal(b.store).Unreadable, "set Config.Payloads")
		assert.Equal(t, "secret", string(reveal(sealing).Payload))
		keys.failWith(errBoom)
		require.ErrorIs(t, reveal(sealing).Unreadable, errBoom)
		keys.failWith(nil)
		keys.erase("ada")
		m := reveal(sealing)
		require.ErrorIs(t, m.Unreadable, inbox.ErrErased)
		assert.Nil(t, m.Payload)
		assert.Equal(t, 4, b.audited("reveal"))

		require.NoError(t, b.queue(sealing).Put(t.Context(), "orders", of("ada", "too late to be kept")))
		list, err := admin.New(sealing).Search(t.Context(), admin.Filter{}, id, 10, 0)
		require.NoError(t, err)
		require.Len(t, list.Messages, 1)
		require.ErrorIs(t, list.Messages[0].Unreadable, inbox.ErrErased, "it was erased before it was stored")
	})},
	{Name: "a story without payloads", Why: "neither of open messages nor of outcomes", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		sealing := b.sealing(new(subjects))
		for _, store := range []*inbox.Store{b.store, sealing} {
			produced := of("ada", "an invoice")
			msg := of("ada", "an order")
			h := millrace.Inbox{Store: store, Consumer: consumer}.Middleware(func(*message.Message) ([]*message.Message, error) {
				return message.Messages{produced}, nil
			})
			runAsRouter(t, msg.Copy(), h)
			runAsRouter(t, message.NewMessage(msg.UUID, []byte("another order")), h)
			whole := rig.Story(t, store, msg.UUID)
			require.Equal(t, "an invoice", string(whole.Claims[0].Outcome[0].Payload))
			require.Equal(t, "another order", string(whole.Open[0].Payload))
			outline, err := admin.New(store).Outline(t.Context(), msg.UUID)
			require.NoError(t, err)
			require.Len(t, outline.Claims, 1)
			require.Len(t, outline.Claims[0].Outcome, 1)
			assert.Nil(t, outline.Claims[0].Outcome[0].Payload)
			assert.Equal(t, produced.UUID, outline.Claims[0].Outcome[0].UUID)
			assert.Equal(t, "invoices", outline.Claims[0].Topic)
			require.Len(t, outline.Open, 1)
			assert.Nil(t, outline.Open[0].Payload)
			assert.Equal(t, whole.Open[0].Reason, outline.Open[0].Reason)
		}
	})},
	{Name: "who looked at a result", Why: "it may be as personal as a payload", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		h := millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware(func(m *message.Message) ([]*message.Message, error) {
			return nil, inbox.SetResult(m.Context(), map[string]string{"customer": "ada"})
		})
		runAsRouter(t, msg.Copy(), h)
		outline, err := admin.New(b.store).Outline(t.Context(), msg.UUID)
		require.NoError(t, err)
		require.Len(t, outline.Claims, 1)
		assert.Nil(t, outline.Claims[0].Result)
		assert.Equal(t, len(`{"customer":"ada"}`), outline.Claims[0].ResultSize)

		_, err = admin.New(b.store).RevealResult(t.Context(), consumer, 0, msg.UUID, admin.Operator{Name: "ada"})
		require.ErrorContains(t, err, "needs a Name and a Reason")
		other := rig.NewStore(t, b.db.DB, inbox.Config{Namespace: "other"})
		for name, no := range map[string]func() error{
			"another namespace": func() error { return reveal(other, consumer, 0, msg.UUID) },
			"another epoch":     func() error { return reveal(b.store, consumer, 1, msg.UUID) },
			"another consumer":  func() error { return reveal(b.store, "other", 0, msg.UUID) },
			"another message":   func() error { return reveal(b.store, consumer, 0, newMessage().UUID) },
		} {
			require.ErrorIs(t, no(), inbox.ErrNotFound, name)
		}
		assert.Zero(t, b.audited("reveal"), "nothing was seen")
		body, err := admin.New(b.store).RevealResult(t.Context(), consumer, 0, msg.UUID, ada)
		require.NoError(t, err)
		assert.JSONEq(t, `{"customer":"ada"}`, string(body))
		assert.Equal(t, []admin.Operator{ada}, b.revealed(msg.UUID))
	})},
}

func reveal(s *inbox.Store, consumer string, epoch int, key string) error {
	_, err := admin.New(s).RevealResult(context.Background(), consumer, epoch, key, ada)
	return err
}

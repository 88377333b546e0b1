package tests_test

import (
	"errors"
	"strings"
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

var operator = admin.Operator{Name: "ada", Reason: "producer was mended"}

// parkingBodies: messages that wait for an operator.
var parkingBodies = []testdb.Body{
	{Name: "failures of two epochs", Why: "an operator discards them, whether something tries them again or not", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		raised := func(i *millrace.Inbox) { i.RecordFailures, i.Epoch = true, 1 }
		alone, handled, waiting := newMessage("x"), newMessage("y"), newMessage("z")
		for _, msg := range []*message.Message{alone, handled, waiting} {
			rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
		}
		operators, old, newest := admin.New(b.store), 0, 1
		open := rig.Find(t, b.store, admin.Filter{})
		must(t, b.inbox(effect, raised), again(handled))
		rig.MustFail(t, b.inbox(alwaysFails, raised), again(waiting), errBoom)

		require.NoError(t, operators.Discard(t.Context(), open[0].ID, operator))
		n, err := operators.DiscardAll(t.Context(), admin.Filter{Consumer: "billing"}, operator, admin.Pace{})
		require.NoError(t, err)
		assert.Zero(t, n, "none waits for an operator")
		n, err = operators.DiscardAll(t.Context(), admin.Filter{Consumer: "billing", Epoch: &old, Status: admin.FailedRetryable}, operator, admin.Pace{})
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		left := rig.Find(t, b.store, admin.Filter{})
		require.Len(t, left, 1)
		assert.Equal(t, newest, left[0].Epoch)
		must(t, b.inbox(effect, recorded, on(b.process())), again(handled))
		require.NoError(t, operators.Discard(t.Context(), left[0].ID, operator))
		must(t, b.inbox(effect, raised), again(waiting))
		assert.Equal(t, 1, b.effects(), "what was discarded counts as handled")
	})},
	{Name: "a collision is parked once per payload", Why: "same key, other payload: never silently dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(effect), newMessage("first")
		must(t, h, again(msg))
		for range 2 {
			for _, payload := range []string{"second", "third"} {
				must(t, h, message.NewMessage(msg.UUID, []byte(payload)))
				must(t, b.inbox(effect, on(b.process())), message.NewMessage(msg.UUID, []byte(payload)))
			}
		}
		assert.Equal(t, 1, b.effects())
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 2)
		assert.Equal(t, "second", string(parked[0].Payload))
		assert.Equal(t, msg.UUID, parked[0].UUID)
		assert.Equal(t, msg.UUID, parked[0].Original)
		assert.Contains(t, parked[0].Reason, msg.UUID)
		assert.Equal(t, 8, b.events.Count("collision"))
		assert.Equal(t, 2, b.events.Count("parked"))
		page, err := admin.New(b.store).Find(t.Context(), admin.Filter{Status: admin.Parked}, parked[0].ID, 10)
		require.NoError(t, err)
		require.Len(t, page, 1)
		assert.Equal(t, "third", string(page[0].Payload))
		story := rig.Story(t, b.store, msg.UUID)
		assert.Len(t, story.Open, 2)
	})},
	{Name: "a collision with an open message", Why: "the payload is compared with open ones too", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("first")
		rig.MustFail(t, b.inbox(alwaysFails, recorded), again(msg), errBoom)
		must(t, b.inbox(effect, recorded), message.NewMessage(msg.UUID, []byte("second")))
		assert.Equal(t, 0, b.effects())
		must(t, b.inbox(effect, recorded), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "what happened without a queue", Why: "failures that are recorded, and why a message was parked, are kept when it is handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg, failures := newMessage("first"), 2
		h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			if failures--; failures >= 0 {
				return nil, errBoom
			}
			return effect(msg)
		}, recorded)
		for range 2 {
			rig.MustFail(t, h, again(msg), errBoom)
		}
		failed := rig.Find(t, b.store, admin.Filter{Status: admin.FailedRetryable})[0]
		other := message.NewMessage(msg.UUID, []byte("second"))
		for range 3 {
			must(t, h, again(msg))
			must(t, h, again(other))
		}
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.History, 2)
		for i, e := range story.History {
			assert.Equal(t, []any{true, i + 1, i + 1, admin.FailedRetryable, errBoom.Error()}, []any{e.Failed, e.Number, e.Attempts, e.Status, e.Error})
		}
		require.Len(t, story.Claims, 1)
		assert.Equal(t, failed.ReceivedAt, story.Claims[0].ReceivedAt)

		parked := rig.Parked(t, b.store)[0]
		require.NoError(t, admin.New(b.store).Discard(t.Context(), parked.ID, operator))
		story = rig.Story(t, b.store, parked.MessageID)
		require.Len(t, story.History, 1)
		assert.Equal(t, []any{false, admin.Parked, parked.Reason}, []any{story.History[0].Failed, story.History[0].Status, story.History[0].Reason})
		assert.Equal(t, parked.ReceivedAt, story.Claims[0].ReceivedAt)
	})},
	{Name: "a collision that is tried again", Why: "it is treated as the distinct message it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(effect, on(b.process())), newMessage("first")
		s := b.oneHandler("orders", effect, millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware)
		assert.True(t, s.deliver(again(msg)))
		other := message.NewMessage(msg.UUID, []byte("second"))
		other.Metadata.Set("k", "v")
		assert.True(t, s.deliver(again(other)))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)

		require.Error(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, admin.Operator{}, s.published), "nobody to blame")
		require.ErrorContains(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, nil), "publisher")
		s.published.FailWith(errBoom)
		require.ErrorIs(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published), errBoom)
		assert.Equal(t, parked, rig.Parked(t, b.store), "it waits for an operator as before")
		s.published.FailWith(nil)
		require.NoError(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published), "so again")
		sent := s.published.Messages()
		require.Len(t, sent, 1)
		assert.Equal(t, other.UUID, sent[0].UUID)
		assert.Equal(t, other.Payload, sent[0].Payload)
		assert.Equal(t, other.Metadata, sent[0].Metadata)

		must(t, h, again(sent[0]))
		must(t, h, again(sent[0]))
		must(t, h, again(msg))
		assert.Equal(t, 2, b.effects())
		b.nothingOpen()
		require.ErrorIs(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, s.published), inbox.ErrNotFound)
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Audit, 3, "what was done about a collision is part of the story it collided with")
		assert.Equal(t, []string{"retry", "undo retry", "retry"}, []string{story.Audit[0].Action, story.Audit[1].Action, story.Audit[2].Action})
	})},
	{Name: "a discarded message", Why: "it counts as completed, and says who decided so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.forgotten(msg)
		old := func(i *millrace.Inbox) { i.MessageTime = longAgo }
		must(t, b.inbox(effect, old), again(msg))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		require.NoError(t, admin.New(b.store).Discard(t.Context(), parked[0].ID, operator))
		require.ErrorIs(t, admin.New(b.store).Discard(t.Context(), parked[0].ID, operator), inbox.ErrNotFound)
		must(t, b.inbox(effect, old, on(b.process())), again(msg))
		assert.Equal(t, 0, b.effects())
		b.nothingOpen()
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Claims, 1)
		assert.True(t, story.Claims[0].Discarded)
		require.Len(t, story.Audit, 1)
		assert.Equal(t, operator, story.Audit[0].Operator)
		assert.Equal(t, "discard", story.Audit[0].Action)
	})},
	{Name: "a redelivery of a parked message", Why: "acked and counted: only an operator takes it out", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		b.forgotten(msg)
		old := func(i *millrace.Inbox) { i.MessageTime = longAgo }
		for range 3 {
			must(t, b.inbox(effect, old, on(b.process())), again(msg))
		}
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, 1, b.events.Count("parked"))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`))
	})},
	{Name: "what cannot be tried again", Why: "the error says why, and what to do instead", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		key := func(i *millrace.Inbox) {
			i.Key = inbox.ByPosition(func(*message.Message) (inbox.Position, error) {
				return inbox.Position{Topic: "orders", Partition: "1", Offset: 7}, nil
			})
		}
		h := b.inbox(func(m *message.Message) ([]*message.Message, error) {
			parked, err := admin.New(b.store).Find(m.Context(), admin.Filter{Status: admin.Parked}, 0, 1)
			if err != nil || len(parked) == 0 {
				return nil, err
			}
			return nil, admin.New(b.store).Retry(m.Context(), parked[0].ID, operator, &rig.Publisher{})
		}, key)
		must(t, h, again(msg))
		must(t, h, message.NewMessage(msg.UUID, []byte("other")))
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		require.ErrorContains(t, admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, &rig.Publisher{}), "place in a log")
		for source, places := range map[string]bool{`joined(uuid,position)`: true, `first(position,uuid)/type`: true, `metadata:"position"`: false} {
			b.exec(`UPDATE millrace_consumers SET key_source = ?`, []byte(source))
			err := admin.New(b.store).Retry(t.Context(), parked[0].ID, operator, &rig.Publisher{})
			require.Error(t, err, source) // without a router its topic is not known
			assert.Equal(t, places, strings.Contains(err.Error(), "place in a log"), source)
		}
		rig.MustFail(t, b.inbox(func(m *message.Message) ([]*message.Message, error) {
			return nil, admin.New(b.store).Retry(m.Context(), parked[0].ID, operator, &rig.Publisher{})
		}, func(i *millrace.Inbox) { i.Consumer = "other" }), newMessage("x"), "handler's transaction")
		stranger := b.newStore(b.db.DB, inbox.Config{Namespace: "stranger"})
		require.ErrorIs(t, admin.New(stranger).Discard(t.Context(), parked[0].ID, operator), inbox.ErrNotFound)
	})},
	{Name: "OnCollision", Why: "drop and fail do what they say", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("first")
		h := func(c inbox.OnCollision) message.HandlerFunc {
			return b.inbox(effect, on(b.process()), func(i *millrace.Inbox) { i.OnCollision = c })
		}
		must(t, h(inbox.CollisionDrop), again(msg))
		must(t, h(inbox.CollisionDrop), message.NewMessage(msg.UUID, []byte("second")))
		rig.MustFail(t, h(inbox.CollisionFail), message.NewMessage(msg.UUID, []byte("second")), inbox.ErrCollision)
		require.Equal(t, 1, b.events.Count("failed"), "nobody else hears of it")
		assert.Equal(t, inbox.ReasonCollision, b.events.Last("failed").Reason)
		require.ErrorIs(t, b.events.Last("failed").Err, inbox.ErrCollision)
		assert.Equal(t, 1, b.effects())
		b.nothingOpen()
	})},
	{Name: "Fingerprint", Why: "it replaces the payload in the comparison", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, func(i *millrace.Inbox) {
			i.Fingerprint = func(msg *message.Message) ([]byte, error) {
				if len(msg.Payload) == 0 {
					return nil, errors.New("nothing to compare")
				}
				return msg.Payload[:1], nil
			}
		})
		msg := newMessage("a1")
		must(t, h, again(msg))
		must(t, h, message.NewMessage(msg.UUID, []byte("a2")))
		assert.Equal(t, 0, b.events.Count("collision"))
		must(t, h, message.NewMessage(msg.UUID, []byte("b")))
		assert.Equal(t, 1, b.events.Count("collision"))
		must(t, h, message.NewMessage("empty", nil))
		assert.Equal(t, inbox.ReasonNoKey, b.events.Last("parked").Reason)
		assert.ErrorContains(t, b.events.Last("parked").Err, "nothing to compare")
	})},
}

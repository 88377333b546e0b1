package tests_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestRedispatchOfWhatFails: neither a topic that takes nothing nor a broker that is out keeps anything waiting.
func TestRedispatchOfWhatFails(t *testing.T) {
	testdb.Conformance(t, redispatchBodies)
}

// leftBehind makes an outcome for each of these topics, the oldest first.
func (b *bed) leftBehind(topics ...string) {
	b.Helper()
	s := b.newService(invoice, b.patient().Middleware)
	s.published.FailWith(errBoom)
	assert.False(b, s.deliver(newMessage("x")))
	var template struct {
		Consumer int32  `db:"consumer"`
		Messages []byte `db:"messages"`
		At       int64  `db:"created_at"`
	}
	require.NoError(b, b.db.GetContext(b.Context(), &template, `SELECT consumer, messages, created_at FROM millrace_outcomes`))
	b.exec(`DELETE FROM millrace_outcomes`)
	for n, topic := range topics {
		b.exec(`INSERT INTO millrace_outcomes (consumer, message_id, topic, messages, created_at) VALUES (?, ?, ?, ?, ?)`,
			template.Consumer, fmt.Appendf(nil, "u%d", n), []byte(topic), template.Messages, template.At-1_000_000+int64(n))
	}
}

func (b *bed) outcomesLeft() (n int) {
	b.Helper()
	require.NoError(b, b.db.GetContext(b.Context(), &n, `SELECT COUNT(*) FROM millrace_outcomes`))
	return n
}

func never(string) bool { return false }

func always(string) bool { return true }

func times(n int, topic string) (all []string) {
	for range n {
		all = append(all, topic)
	}
	return all
}

var redispatchBodies = []testdb.Body{
	{Name: "a topic that takes nothing", Why: "I6: the others do not wait for it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.leftBehind(append(times(30, "gone"), "kept", "gone", "kept")...)
		publisher := &deaf{fails: func(topic string) bool { return topic == "gone" }}
		sent, err := b.store.Redispatch(t.Context(), publisher, 0)
		require.ErrorIs(t, err, errBoom)
		require.ErrorContains(t, err, "21 outcomes", "it says what it left")
		assert.Equal(t, []int{2, 10 + 2, 31}, []int{sent, publisher.tried, b.outcomesLeft()})
		publisher.fails = never
		sent, err = b.store.Redispatch(t.Context(), publisher, 0)
		require.NoError(t, err)
		assert.Equal(t, []int{31, 0}, []int{sent, b.outcomesLeft()}, "none is left out")
	})},
	{Name: "a broker that is out", Why: "it is not asked for each outcome, nor for each topic", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var topics []string
		for n := range 70 {
			topics = append(topics, fmt.Sprint("topic-", n))
		}
		b.leftBehind(topics...)
		publisher := &deaf{fails: always}
		_, err := b.store.Redispatch(t.Context(), publisher, 0)
		require.ErrorIs(t, err, errBoom)
		assert.Equal(t, 50, publisher.tried)
		publisher.fails = never
		sent, err := b.store.Redispatch(t.Context(), publisher, 0)
		require.NoError(t, err)
		assert.Equal(t, 20, sent, "it goes on behind those")
		sent, err = b.store.Redispatch(t.Context(), publisher, 0)
		require.NoError(t, err)
		assert.Equal(t, []int{50, 0}, []int{sent, b.outcomesLeft()}, "none is left out")
	})},
	{Name: "a process with another key", Why: "it acks the copy, and leaves what it cannot open to those who can", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		of := func(key byte) *inbox.Store {
			codec, err := payload.NewAESGCM(payload.KeyRing{Current: "k", Keys: map[string][]byte{"k": bytes.Repeat([]byte{key}, 32)}})
			require.NoError(t, err)
			return b.newStore(b.db.DB, inbox.Config{Payloads: codec})
		}
		msg, right, wrong, sent := newMessage("x"), of(1), of(2), &rig.Publisher{}
		b.store = right
		s := b.newService(invoice, b.patient().Middleware)
		s.published.FailWith(errBoom)
		require.False(t, s.deliver(again(msg)))
		b.store = wrong
		s = b.newService(invoice, b.patient().Middleware)
		assert.True(t, s.deliver(again(msg)))
		assert.Empty(t, s.published.Messages())
		_, err := wrong.Redispatch(t.Context(), sent, 0)
		require.Error(t, err)
		require.NoError(t, wrong.Close(t.Context()))
		assert.Equal(t, 1, b.outcomesLeft())
		n, err := right.Redispatch(t.Context(), sent, 0)
		require.NoError(t, err)
		assert.Equal(t, []int{1, 1, 0}, []int{n, len(sent.Messages()), b.outcomesLeft()})
	})},
	{Name: "outcomes that change while others are sent", Why: "each is read when it is sent: together they may not fit into memory", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		change := func() {
			b.exec(`DELETE FROM millrace_outcomes WHERE message_id = ?`, []byte("u1"))
			b.exec(`UPDATE millrace_outcomes SET messages = ? WHERE message_id = ?`, []byte{99}, []byte("u2")) // only a newer release can read it
		}
		b.leftBehind(times(4, "receipts")...)
		publisher := &deaf{fails: never}
		publisher.call = func() {
			if publisher.tried == 1 {
				change()
			}
		}
		sent, err := b.store.Redispatch(t.Context(), publisher, 0)
		require.ErrorContains(t, err, "newer release")
		assert.Equal(t, []int{2, 2, 1}, []int{sent, publisher.tried, b.outcomesLeft()})

		b.exec(`DELETE FROM millrace_outcomes`)
		b.leftBehind(times(4, "receipts")...)
		ops, by := admin.New(b.store), admin.Operator{Name: "ada", Reason: "its process died"}
		pace := admin.Pace{Progress: func(done int) {
			if done == 1 {
				change()
			}
		}}
		sent, _, err = ops.RedispatchAll(t.Context(), admin.ConsumerFilter{}, 0, 10, by, &deaf{fails: never}, pace)
		require.ErrorContains(t, err, "newer release")
		assert.Equal(t, []int{2, 1}, []int{sent, b.outcomesLeft()})
		_, err = ops.Unsettled(t.Context(), admin.ConsumerFilter{Consumer: "mail"}, 0, 10)
		assert.NoError(t, err, "what another consumer has left is not read")
	})},
	{Name: "a context that ends while outcomes are sent", Why: "a store that closes does not wait for each", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.leftBehind(times(6, "receipts")...)
		b.exec(`UPDATE millrace_outcomes SET messages = ? WHERE message_id = ?`, []byte{99}, []byte("u1")) // only a newer release can read it
		ctx, cancel := context.WithCancel(t.Context())
		publisher := &deaf{fails: always}
		publisher.call = func() {
			if publisher.tried == 3 {
				cancel()
			}
		}
		_, err := b.store.Redispatch(ctx, publisher, 0)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 3, publisher.tried)
		sent, err := b.store.Redispatch(t.Context(), &deaf{fails: never}, 0)
		require.NoError(t, err)
		assert.Equal(t, 2, sent, "the next call goes on behind these, also behind what cannot be read")
	})},
}

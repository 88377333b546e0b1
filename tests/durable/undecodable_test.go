package durable_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestARowThatNobodyCanRead: somebody changed what is stored of a message.
func TestARowThatNobodyCanRead(t *testing.T) {
	testdb.Conformance(t, unreadableBodies)
}

var unreadableBodies = []testdb.Body{
	{Name: "a message with broken metadata", Why: "it waits for an operator, and others do not wait for it", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		b.putBroken(inbox.QueueConfig{}, newMessage())
		b.sortsOut(pubsub.Durable{})
	})},
	{Name: "a message without a key, with broken metadata", Why: "its key is not looked for again and again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.putBroken(inbox.QueueConfig{Key: byOrder}, broken("bad"))
		b.db.Do(t, `UPDATE millrace_messages SET status = 4, due_at = 0`)
		b.sortsOut(pubsub.Durable{Key: byOrder})
	})},
	{Name: "a message of an older epoch, with broken metadata", Why: "it moves with the others", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		b.putBroken(inbox.QueueConfig{}, newMessage())
		b.sortsOut(pubsub.Durable{Epoch: 1})
	})},
	{Name: "an outcome, and broken metadata", Why: "nobody needs the metadata of what was handled", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.start(storeFirst(b.store), invoicing, millrace.Inbox{Store: b.store}.Middleware)
		s.published.FailWith(errBoom)
		msg := newMessage()
		require.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
		b.breakRows()
		s.published.FailWith(nil)
		rig.Eventually(b, "it is published", func() bool { return b.rows() == 0 && len(s.published.Messages()) == 1 })
		assert.Equal(t, 1, b.effects(msg))
	})},
}

func (b *bed) putBroken(config inbox.QueueConfig, msg *message.Message) {
	b.Helper()
	b.storeIn(config, msg)
	b.breakRows()
}

func (b *bed) breakRows() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET metadata = ?`, []byte{9, 9})
}

// sortsOut runs a service beside a row that nobody can read.
func (b *bed) sortsOut(change pubsub.Durable) {
	b.Helper()
	events := b.told()
	durable := storeFirst(b.store)
	durable.Key, durable.Epoch = change.Key, change.Epoch
	s := b.inboxed(durable, effect)
	good := order("good", 1)
	assert.True(b, s.deliver(good))
	rig.Eventually(b, "others are handled, and it waits for an operator", func() bool {
		return b.effects(good) == 1 && b.rows() == 1 && b.open(admin.FailedTerminal) == 1
	})
	assert.Equal(b, 1, events.Count("parked"))
	assert.Equal(b, inbox.ReasonPayload, events.Last("parked").Reason)
	assert.Zero(b, events.Count("reclaimed"), "nobody had it")
	found := b.only(b.store, 0)
	assert.Contains(b, found.Reason, "restore the metadata")
	require.ErrorContains(b, found.Unreadable, "metadata")
	require.ErrorContains(b, admin.New(b.store).Retry(b.Context(), found.ID, ada, nil), "metadata")
	require.NoError(b, admin.New(b.store).Discard(b.Context(), found.ID, ada))
	assert.Zero(b, b.rows())
}

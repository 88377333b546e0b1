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
	{Name: "a message with broken metadata", Why: "it waits for an operator, and others do not wait for it", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.putBroken(b.queueOf(inbox.QueueConfig{Consumer: consumer}), newMessage())
		b.sortsOut(pubsub.Durable{})
	}},
	{Name: "a message without a key, with broken metadata", Why: "its key is not looked for again and again", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.putBroken(b.queueOf(inbox.QueueConfig{Consumer: consumer, Key: byOrder}), broken("bad"))
		_, err := b.db.ExecContext(t.Context(), `UPDATE millrace_messages SET status = 4, due_at = 0`)
		require.NoError(t, err)
		b.sortsOut(pubsub.Durable{Key: byOrder})
	}},
	{Name: "a message of an older epoch, with broken metadata", Why: "it moves with the others", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.putBroken(b.queueOf(inbox.QueueConfig{Consumer: consumer}), newMessage())
		b.sortsOut(pubsub.Durable{Epoch: 1})
	}},
	{Name: "an outcome, and broken metadata", Why: "nobody needs the metadata of what was handled", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		durable := quick(b.store)
		durable.Mode = pubsub.StoreFirst
		h := func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("invoice", nil)}, effect(msg)
		}
		s := b.start(durable, h, millrace.Inbox{Store: b.store}.Middleware)
		s.published.FailWith(errBoom)
		msg := newMessage()
		require.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
		b.breakRows()
		s.published.FailWith(nil)
		rig.Eventually(b, "it is published", func() bool { return b.rows() == 0 && len(s.published.Messages()) == 1 })
		assert.Equal(t, 1, b.effects(msg))
	}},
}

func (b *bed) queueOf(config inbox.QueueConfig) *inbox.Queue {
	b.Helper()
	q, err := b.store.Queue(config)
	require.NoError(b, err)
	return q
}

func (b *bed) putBroken(q *inbox.Queue, msg *message.Message) {
	b.Helper()
	require.NoError(b, q.Put(b.Context(), "orders", msg))
	b.breakRows()
}

func (b *bed) breakRows() {
	b.Helper()
	_, err := b.db.ExecContext(b.Context(), b.db.Rebind(`UPDATE millrace_messages SET metadata = ?`), []byte{9, 9})
	require.NoError(b, err)
}

// sortsOut runs a service beside a row that nobody can read.
func (b *bed) sortsOut(change pubsub.Durable) {
	b.Helper()
	events := &rig.Events{}
	store, err := inbox.NewStore(b.db.DB, inbox.Config{Observers: []inbox.Observer{events}, WithoutPlugin: true})
	require.NoError(b, err)
	durable := quick(store)
	durable.Mode, durable.Key, durable.Epoch = pubsub.StoreFirst, change.Key, change.Epoch
	s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) },
		millrace.Inbox{Store: store, Key: change.Key, Options: inbox.Options{Epoch: change.Epoch}}.Middleware)
	good := order("good", 1)
	assert.True(b, s.deliver(good))
	rig.Eventually(b, "others are handled, and it waits for an operator", func() bool {
		return b.effects(good) == 1 && b.rows() == 1 && b.open(admin.FailedTerminal) == 1
	})
	assert.Equal(b, 1, events.Count("parked"))
	assert.Equal(b, inbox.ReasonPayload, events.Last("parked").Reason)
	assert.Zero(b, events.Count("reclaimed"), "nobody had it")
	found, err := admin.New(store).Find(b.Context(), admin.Filter{}, 0, 10)
	require.NoError(b, err, "a list says what it can")
	require.Len(b, found, 1)
	assert.Contains(b, found[0].Reason, "restore the metadata")
	require.ErrorContains(b, found[0].Unreadable, "metadata")
	require.ErrorContains(b, admin.New(store).Retry(b.Context(), found[0].ID, ada, nil), "metadata")
	require.NoError(b, admin.New(store).Discard(b.Context(), found[0].ID, ada))
	assert.Zero(b, b.rows())
}

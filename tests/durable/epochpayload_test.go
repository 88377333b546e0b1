package durable_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// lostBlobs gives no blob back while it is away.
type lostBlobs struct {
	*blobs
	away bool
}

func (l *lostBlobs) Get(ctx context.Context, name string) ([]byte, error) {
	if l.away {
		return nil, errFull
	}
	return l.blobs.Get(ctx, name)
}

// ofPayload is a queue of the next epoch, whose messages are known by their payloads.
func (b *bed) ofPayload(store *inbox.Store) *inbox.Queue {
	b.Helper()
	return rig.Queue(b, store, inbox.QueueConfig{
		Consumer: consumer, Epoch: 1, Key: inbox.ByPayload(),
		OrderKey: func(*message.Message) (string, error) { return "", nil }, // so it looks into the older epoch each time
	})
}

// isKnown asserts that queue knows a copy of a message that was stored in the older epoch.
func (b *bed) isKnown(queue *inbox.Queue, msg *message.Message, rows int) {
	b.Helper()
	copied := newMessage()
	copied.Payload, copied.Metadata = msg.Payload, msg.Copy().Metadata
	require.NoError(b, queue.Put(b.Context(), "orders", copied))
	assert.Equal(b, rows, b.rows(), "it is stored already")
}

var epochPayloadBodies = []testdb.Body{
	{Name: "a payload out of its row, in a raised epoch", Why: "it is read in the transaction that moves the message, whose key depends on it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = b.storeWith(inbox.Config{BlobsAbove: above})
		msg := large()
		b.storeIn(inbox.QueueConfig{}, msg)
		alone := b.db.Open(t).DB
		alone.SetMaxOpenConns(1)
		queue := b.ofPayload(rig.NewStore(t, alone, inbox.Config{BlobsAbove: above, WithoutPlugin: true, PurgeInterval: time.Hour}))
		b.takes(queue, 1)
		b.isKnown(queue, msg, 1)
	})},
	{Name: "a blob store that is away when an epoch is raised", Why: "a message whose key depends on its payload waits for it, and others move", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files := &lostBlobs{blobs: newBlobs(t)}
		b.store, _ = b.filing(files, time.Hour)
		msg, small := large(), newMessage()
		b.storeIn(inbox.QueueConfig{}, msg, small)
		files.away = true
		queue := b.ofPayload(b.store)
		assert.Empty(t, rig.Take(t, queue, 10), "some are in the older epoch")
		assert.Equal(t, 1, b.moved())
		files.away = false
		b.takes(queue, 2)
		b.isKnown(queue, msg, 2)
	})},
	{Name: "a blob store that is away when an epoch is raised for a key of fields", Why: "the message has its new key without its payload", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files := &lostBlobs{blobs: newBlobs(t)}
		b.store, _ = b.filing(files, time.Hour)
		msg := large()
		msg.Metadata.Set("order", "17")
		b.storeIn(inbox.QueueConfig{}, msg)
		files.away = true
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer, Epoch: 1, Key: inbox.ByMetadata("order")})
		assert.Empty(t, rig.Take(t, queue, 10), "its payload cannot be opened")
		assert.Equal(t, 1, b.moved())
		files.away = false
		b.isKnown(queue, msg, 1)
	})},
	{Name: "a blob that is lost when an epoch is raised", Why: "while others can be opened, its message moves under its old key, and holds nobody up", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files := newBlobs(t)
		b.store, _ = b.filing(files, time.Hour)
		lost, msg := large(), of("ada", string(large().Payload)+"!")
		b.storeIn(inbox.QueueConfig{}, lost)
		require.NoError(t, files.Delete(t.Context(), files.names(t)[0]))
		b.storeIn(inbox.QueueConfig{}, msg)
		queue := b.ofPayload(b.store)
		assert.Empty(t, rig.Take(t, queue, 10), "it may have been an outage")
		assert.Equal(t, 1, b.moved())
		b.takes(queue, 1)
		assert.Equal(t, 2, b.moved())
	})},
}

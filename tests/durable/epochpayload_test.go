package durable_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// lostBlobs gives no blob back while it is away.
type lostBlobs struct {
	*blobs
	away bool
	got  func()
}

func (l *lostBlobs) Get(ctx context.Context, name string) ([]byte, error) {
	if l.away {
		return nil, errFull
	}
	if l.got != nil {
		defer l.got()
	}
	return l.blobs.Get(ctx, name)
}

// ofPayload is a queue of the next epoch, whose messages are known by their payloads.
func (b *bed) ofPayload(store *inbox.Store) *inbox.Queue {
	b.Helper()
	return rig.Queue(b, store, inbox.QueueConfig{Consumer: consumer, Epoch: 1, Key: inbox.ByPayload()})
}

// copied stores a copy of a message that was stored in the older epoch, and asserts how many messages are stored then.
func (b *bed) copied(queue *inbox.Queue, msg *message.Message, rows int) {
	b.Helper()
	again := newMessage()
	again.Payload, again.Metadata = msg.Payload, msg.Copy().Metadata
	require.NoError(b, queue.Put(b.Context(), "orders", again))
	assert.Equal(b, rows, b.rows())
}

var epochPayloadBodies = []testdb.Body{
	{Name: "payloads out of their rows in a raised epoch", Why: "they are looked at outside of the transaction that moves the messages, whose keys depend on them", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = b.storeWith(inbox.Config{BlobsAbove: above})
		msg, small := large(), newMessage()
		b.storeIn(inbox.QueueConfig{}, msg, small)
		alone := b.db.Open(t).DB
		alone.SetMaxOpenConns(1)
		queue := b.ofPayload(rig.NewStore(t, alone, inbox.Config{BlobsAbove: above, WithoutPlugin: true, PurgeInterval: time.Hour}))
		b.takes(queue, 2)
		b.copied(queue, msg, 2)
		b.copied(queue, small, 2)
	})},
	{Name: "a payload that is replaced while it is looked at", Why: "it is looked at again, before its message moves", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files, looks := &lostBlobs{blobs: newBlobs(t)}, 0
		b.store, _ = b.filing(files, time.Hour)
		b.storeIn(inbox.QueueConfig{}, large())
		b.db.Do(t, `UPDATE millrace_messages SET status = ?`, admin.Parked)
		files.got = func() {
			if looks++; looks == 1 {
				assert.Zero(t, b.moved())
				b.db.Do(t, `UPDATE millrace_messages SET payload_hash = payload_hash + 1`)
			}
		}
		assert.Empty(t, rig.Take(t, b.ofPayload(b.store), 10))
		assert.Equal(t, []int{2, 1}, []int{looks, b.moved()})
	})},
	{Name: "a blob store that is away when an epoch is raised", Why: "the message moves under its old key, which holds nobody up", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files := &lostBlobs{blobs: newBlobs(t), away: true}
		b.store, _ = b.filing(files, time.Hour)
		msg, small := large(), newMessage()
		b.storeIn(inbox.QueueConfig{}, msg, small)
		queue := b.ofPayload(b.store)
		b.takes(queue, 1)
		assert.Equal(t, 2, b.moved())
		files.away = false
		b.copied(queue, small, 2)
		b.copied(queue, msg, 3)
	})},
	{Name: "a blob store that is away when an epoch is raised for a key of fields", Why: "the message has its new key without its payload", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		files := &lostBlobs{blobs: newBlobs(t), away: true}
		b.store, _ = b.filing(files, time.Hour)
		msg := large()
		msg.Metadata.Set("order", "17")
		b.storeIn(inbox.QueueConfig{}, msg)
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer, Epoch: 1, Key: inbox.ByMetadata("order")})
		assert.Empty(t, rig.Take(t, queue, 10), "its payload cannot be opened")
		assert.Equal(t, 1, b.moved())
		files.away = false
		b.copied(queue, msg, 1)
	})},
}

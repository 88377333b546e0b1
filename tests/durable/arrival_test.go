package durable_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// What is stored together comes out as it arrived, though the ids are random: a version gate
// behind the queue would hold all that comes early.
func TestTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	const batch, take = 100, 40
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		var arrived, found, came []string
		for range 2 {
			msgs := newMessages(batch)
			arrived = append(arrived, uuids(msgs)...)
			require.NoError(t, queue.Put(t.Context(), "orders", append(msgs, msgs[0].Copy())...), "and a copy")
		}
		for _, m := range rig.Find(t, b.store, admin.Filter{}) {
			found = append(found, m.UUID)
		}
		assert.Equal(t, arrived[:len(found)], found, "as an operator sees them")
		for leased := rig.Take(t, queue, take); len(leased) > 0; leased = rig.Take(t, queue, take) {
			for _, l := range leased {
				msg, err := l.Message(t.Context())
				require.NoError(t, err)
				came = append(came, msg.UUID)
			}
		}
		assert.Equal(t, arrived, came)
	}))
}

// Processes that store the same messages in different orders wait for each other, and end. PostgreSQL looks for
// a deadlock after a second of waiting.
func TestTheSameMessagesArriveInAnotherOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		there := newMessages(100)
		var back []*message.Message
		for _, msg := range slices.Backward(there) {
			back = append(back, msg.Copy())
		}
		events := &rig.Events{}
		var queues []*inbox.Queue
		for range 2 {
			store := rig.NewStore(b, b.db.Open(b).DB, inbox.Config{Observers: []inbox.Observer{events}})
			queues = append(queues, rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer}))
			require.NoError(t, queues[len(queues)-1].Put(t.Context(), "orders", newMessage()), "it is connected")
		}
		var both sync.WaitGroup
		for i, msgs := range [][]*message.Message{there, back} {
			both.Go(func() { assert.NoError(t, queues[i].Put(t.Context(), "orders", msgs...)) })
		}
		both.Wait()
		assert.LessOrEqual(t, events.Count("contention"), 2, "each divides what it stores at most once")
		assert.Equal(t, 2+len(there), b.rows())
	}))
}

func newMessages(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage()
	}
	return msgs
}

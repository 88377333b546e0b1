package tests_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// duplicateBodies: what a message does that is delivered again.
var duplicateBodies = []testdb.Body{
	{Name: "duplicate after success", Why: "I1: effects at most once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(effect), newMessage("x")
		for range 3 {
			must(t, h, again(msg))
		}
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.events.Count("completed"))
		assert.Equal(t, 2, b.events.Count("duplicate"))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 1`))
	})},
	{Name: "duplicate in another process", Why: "I1 across processes: a crash after the commit, before the ack", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		must(t, b.inbox(effect), again(msg))
		must(t, b.inbox(effect, on(b.process())), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "duplicate marked redelivered", Why: "a hint changes the order of asking, never the answer", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		msg.Metadata.Set("_watermill_amqp_redelivered", "true")
		must(t, b.inbox(effect), again(msg))
		must(t, b.inbox(effect, on(b.process())), again(msg))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "duplicate while the first still runs", Why: "a copy waits in memory and is answered by the first's success", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		halted, running, goOn := rig.Halted(effect)
		h, msg := b.inbox(halted), newMessage("x")
		var wg sync.WaitGroup
		wg.Go(func() { must(t, h, again(msg)) })
		<-running
		for range 5 {
			wg.Go(func() { must(t, h, again(msg)) })
		}
		assert.LessOrEqual(t, b.db.Stats().InUse, 1, "waiting copies hold connections")
		goOn()
		wg.Wait()
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 5, b.events.Count("duplicate"))
	})},
	{Name: "copies wait for a failing first", Why: "only a success answers the waiting copies", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const copies = 20
		var delivered atomic.Int32
		var succeeded atomic.Bool
		fail := true
		h, msg := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			if fail {
				fail = false
				rig.Eventually(t, "the copies come while the first runs", func() bool { return delivered.Load() == copies })
				return nil, errBoom
			}
			succeeded.Store(true)
			return effect(msg)
		}), newMessage("x")
		assert.Equal(t, 1, failures(copies, func() error {
			delivered.Add(1)
			_, err := h(again(msg))
			if err == nil {
				assert.True(t, succeeded.Load(), "answered before a run succeeded")
			}
			return err
		}))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a copy with another payload among a hundred equal ones", Why: "only equal payloads are answered together", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msg := b.inbox(effect), newMessage("x")
		other := message.NewMessage(msg.UUID, []byte("y"))
		var wg sync.WaitGroup
		for i := range 101 {
			m := again(msg)
			if i == 50 {
				m = other
			}
			wg.Go(func() { must(t, h, m) })
		}
		wg.Wait()
		assert.Equal(t, 1, b.effects())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_messages`), "the payload that lost is parked, once")
	})},
	{Name: "dropped copies are logged on request", Why: "every decision is visible", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, on(b.newStore(b.db.DB, inbox.Config{LogDropped: true})))
		msg := newMessage("x")
		must(t, h, again(msg))
		must(t, h, again(msg))
		other := b.newStore(b.db.Open(t).DB, inbox.Config{LogDropped: true})
		must(t, b.inbox(effect, on(other)), again(msg))
		story := rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Dropped, 2)
		assert.Equal(t, "settled", story.Dropped[0].Reason)
		assert.Equal(t, "completed", story.Dropped[1].Reason)
		require.Len(t, story.Claims, 1)
		assert.True(t, story.Claims[0].Completed)

		b.db.Do(t, fmt.Sprintf(`INSERT INTO millrace_dropped (at, consumer, message_id, topic, reason)
			SELECT d.at, d.consumer, d.message_id, d.topic, %s FROM millrace_dropped d CROSS JOIN %s WHERE d.reason = ? ORDER BY i`,
			b.db.Bytes("i"), b.db.Numbers(1500)), []byte("settled"))
		story = rig.Story(t, b.store, msg.UUID)
		require.Len(t, story.Dropped, 1000, "a key may have millions")
		assert.Equal(t, "501", story.Dropped[0].Reason)
		assert.Equal(t, "1500", story.Dropped[999].Reason)
	})},
}

package batch_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const day = 24 * time.Hour

// old: which messages a batch takes that say when they were made.
var old = []testdb.Body{
	{Name: "a backlog of messages that say when they were made", Why: "it comes in batches, and each asks once what was forgotten", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		var asked atomic.Int32
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "SELECT purge_line") {
				asked.Add(1)
			}
			return nil
		}})
		seen := &sizes{}
		h := b.batch(4, seen.of(apply), on(b.newStore(pool.DB)))
		young, backlog := made(0, 0, 10*time.Minute, 50*time.Minute), made(3*day, 3*day, 2*day, 0)
		b.must(h, young)
		assert.Zero(t, asked.Load(), "what was made in the last hour cannot have been forgotten")
		b.forgotten(5 * day)
		b.must(h, backlog)
		b.once(append(young, backlog...))
		assert.Equal(t, []int{4, 4}, seen.seen())
		assert.EqualValues(t, 1, asked.Load())
	})},
	{Name: "messages that are too old", Why: "they are parked, and the others are handled in a batch", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		seen := &sizes{}
		h := b.batch(4, seen.of(apply))
		first := newMessages(4)
		b.must(h, first)
		b.forgotten(5 * day)
		msgs := made(3*day, 6*day, 0, 5*day)
		b.must(h, msgs)
		b.once(append(first, msgs[0], msgs[2]))
		assert.Equal(t, []int{4, 2}, seen.seen())
		assert.Len(t, rig.Parked(t, b.store), 2)
		assert.Equal(t, 2, b.events.Count("parked"))
	})},
	{Name: "a claim that is deleted before its copies come", Why: "a batch handles none of them again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h, msgs := b.batch(4, apply), made(9*day, 9*day, 9*day, 9*day)
		b.must(h, copies(msgs))
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - ?`, (8 * day).Microseconds())
		assert.Equal(t, 4, rig.Purge(t, b.store))
		b.must(b.batch(4, apply, on(b.twin())), copies(msgs))
		assert.Equal(t, 4, b.effects())
		assert.Len(t, rig.Parked(t, b.store), 4)
	})},
	{Name: "stored messages that waited", Why: "they are judged by their arrival, and come in batches", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := made(14*day, 14*day, 14*day, 14*day)
		require.NoError(t, rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "billing"}).Put(t.Context(), "orders", msgs...))
		b.db.Do(t, `UPDATE millrace_messages SET received_at = received_at - ?`, (14 * day).Microseconds())
		b.forgotten(7 * day)
		q := b.newQueue(4)
		rig.Eventually(t, "no message is stored", func() bool { return b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages`) == 0 })
		b.once(msgs)
		assert.Equal(t, []int{4}, q.seen())
	})},
	{Name: "a function that panics at the time of a message", Why: "it is that message's fault alone", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msgs := newMessages(3)
		h := b.batch(2, apply, func(batch *millrace.Batch) {
			batch.Inbox.MessageTime = func(msg *message.Message) (time.Time, bool) {
				if msg.UUID == msgs[0].UUID {
					panic("no")
				}
				return time.Now().Add(-2 * time.Hour), true
			}
		})
		recovering := func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				if recover() != nil {
					err = errBoom
				}
			}()
			return h(msg)
		}
		leads := start(recovering, msgs[1:2])
		rig.Eventually(t, "it gathers", func() bool { return b.events.Count("received") == 1 })
		_, err := recovering(msgs[0])
		require.ErrorIs(t, err, errBoom)
		b.must(recovering, msgs[2:])
		require.NoError(t, b.errs(leads)[0])
		b.once(msgs[1:])
	})},
}

// made are messages that say that they were made so long ago.
func made(ago ...time.Duration) []*message.Message {
	msgs := newMessages(len(ago))
	for i, msg := range msgs {
		msg.Metadata.Set("ce_time", time.Now().Add(-ago[i]).Format(time.RFC3339Nano))
	}
	return msgs
}

// forgotten has the janitor have deleted claims so old.
func (b *bed) forgotten(age time.Duration) {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_consumers SET purge_line = created_at - ?`, age.Microseconds())
}

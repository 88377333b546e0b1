package batch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// holding gives the consumer a queue in the process of store, so that its gate holds what comes early.
func (b *bed) holding(store *inbox.Store) func(*millrace.Batch) {
	b.Helper()
	_, err := store.Queue(inbox.QueueConfig{Consumer: "billing"})
	require.NoError(b, err)
	return func(batch *millrace.Batch) {
		ordered(batch)
		batch.Inbox.Store, batch.Gate.OnGap = store, inbox.GapHold
	}
}

// heldRows is what the tables say about the messages that are held.
func (b *bed) heldRows() (rows []heldRow) {
	b.Helper()
	require.NoError(b, b.db.SelectContext(b.Context(), &rows, `
		SELECT m.message_id, m.status, m.attempts, m.aggregate, m.version, m.reason, m.payload, m.metadata, m.payload_hash,
			m.due_at - m.received_at BETWEEN 86400000000 AND 86401000000 AS day, m.order_key IS NULL AND m.last_error IS NULL AND m.lease_token = 0 AS plain,
			c.result, c.payload_hash AS claimed, v.version AS current, h.number, h.status AS noted, h.failed
		FROM millrace_messages m
		JOIN millrace_claims c ON c.consumer = m.consumer AND c.message_id = m.message_id
		JOIN millrace_versions v ON v.consumer = m.consumer AND v.aggregate = m.aggregate AND v.held_to >= m.version
		JOIN millrace_history h ON h.consumer = m.consumer AND h.message_id = m.message_id
		ORDER BY m.aggregate, m.version`))
	return rows
}

type heldRow struct {
	ID        []byte `db:"message_id"`
	Status    int
	Attempts  int
	Aggregate []byte
	Version   int64
	Reason    string
	Payload   []byte
	Metadata  []byte
	Hash      int64 `db:"payload_hash"`
	Day       bool
	Plain     bool
	Result    int
	Claimed   int64
	Current   int64
	Number    int
	Noted     int
	Failed    int
}

// flood runs a service on store and gives it all of msgs at once. Another middleware changes some of them.
func (b *bed) flood(store *inbox.Store, h handler, msgs []*message.Message) {
	b.Helper()
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store}, Gate: &millrace.VersionGate{}, Max: 10}
	router, feed := rig.NewRouter(b.T), rig.NewFeed()
	sub, err := pubsub.Durable{Store: store, Consumer: "billing", Poll: 20 * time.Millisecond}.Decorate(feed)
	require.NoError(b, err)
	router.AddPlugin(batch.Plugin())
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			msg.Payload = message.Payload(strings.Replace(string(msg.Payload), "packed", "x", 1))
			return next(msg)
		}
	})
	router.AddConsumerHandler("billing", "orders", sub, batch.ConsumerHandler(h))
	rig.Run(b.T, router)
	for _, m := range msgs {
		go feed.Give(m)
	}
}

var heldBodies = []testdb.Body{
	{Name: "gaps that a batch holds", Why: "it writes what the gate writes for one message, at once for all", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		var seen sizes
		early := append(b.versions("ada", 4, 6), b.versions("bob", 2, 3)...)
		b.must(b.batch(7, seen.of(follow), b.holding(b.store)), append(b.versions("ada", 1, 2), early...))
		assert.Equal(t, []int{2}, seen.seen(), "the handler gets what follows")
		assert.Equal(t, map[string]int{"received": 7, "completed": 2, "gap": 5, "held": 5}, b.events.Counts())
		b.must(b.batch(5, apply, b.holding(b.store)), copies(early))
		assert.Equal(t, 5, b.events.Count("duplicate"))
		together := b.heldRows()
		require.Len(t, together, 5)

		for _, table := range []string{"claims", "messages", "history", "versions"} {
			b.db.Do(t, `DELETE FROM millrace_`+table)
		}
		single := b.twin()
		b.must(b.batch(2, apply, b.holding(single)), b.versions("ada", 1, 2))
		for _, msg := range copies(early) {
			b.must(b.batch(1, apply, b.holding(single)), []*message.Message{msg})
		}
		assert.Equal(t, together, b.heldRows(), "one by one they are held otherwise")
	})},
	{Name: "gaps of many aggregates", Why: "they are held, and released, by statements that each database takes", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		const n = 510 // SQLite takes 500 SELECTs in one
		var first, second []*message.Message
		for i := range n {
			for v, msgs := range map[int64]*[]*message.Message{1: &first, 2: &second} {
				msg := newMessages(1)[0]
				outbox.Stamp(msg, fmt.Sprint("a", i), v)
				*msgs = append(*msgs, msg)
			}
		}
		one := func(ctx context.Context, msgs []*message.Message) error { return apply(ctx, msgs[:1]) }
		for _, msgs := range [][]*message.Message{second, first} {
			b.must(b.batch(n, one, b.holding(b.store)), msgs)
		}
		assert.Equal(t, map[string]int{"received": 2 * n, "gap": n, "held": n, "completed": n, "released": n}, b.events.Counts())
		assert.Empty(t, slices.DeleteFunc(b.events.Logs(), func(line string) bool { return !strings.Contains(line, "one by one") }))
		assert.Equal(t, n, b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages WHERE status = 1`))
	})},
	{Name: "more held messages than an aggregate may have", Why: "they are parked, as without a batch", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		b.must(b.batch(4, apply, b.holding(b.store), func(batch *millrace.Batch) { batch.Gate.MaxHeld = 2 }), b.versions("ada", 2, 5))
		assert.Equal(t, 2, b.events.Count("held"))
		assert.Equal(t, 2, b.events.Count("parked"))
		assert.Equal(t, inbox.ReasonTooManyHeld, b.events.Last("parked").Reason)
	})},
	{Name: "random order in the queues of two processes", Why: "whoever holds a message or goes past it, each is handled once, in order", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		const aggregates, each = 4, 40
		var msgs []*message.Message
		for i := range aggregates {
			msgs = append(msgs, b.versions(fmt.Sprint("a", i), 1, each)...)
		}
		for i, m := range shuffled(msgs) {
			if i%5 == 0 {
				m.Payload = []byte("packed")
			}
		}
		var seen sizes
		unpacked := seen.of(func(ctx context.Context, msgs []*message.Message) error {
			for _, m := range msgs {
				assert.Equal(t, "x", string(m.Payload), "a message has not passed the middlewares")
				assert.Equal(t, "billing", message.HandlerNameFromCtx(m.Context()))
				assert.Equal(t, "orders", message.SubscribeTopicFromCtx(m.Context()))
			}
			return follow(ctx, msgs)
		})
		half := len(msgs) / 2
		b.flood(b.store, unpacked, msgs[:half])
		b.flood(b.twin(), unpacked, msgs[half:])
		for _, m := range msgs {
			assert.True(t, rig.Answer(t, m))
		}
		rig.Eventually(t, "all are handled", func() bool { return b.events.Count("completed") == len(msgs) })
		for i := range aggregates {
			assert.Equal(t, each, b.version(fmt.Sprint("a", i)))
		}
		b.once(msgs)
		assert.Zero(t, b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages`))
		assert.LessOrEqual(t, slices.Max(seen.seen()), 10, "a batch has more than Max")
		t.Log(len(seen.seen()), "batches")
	})},
	{Name: "what was held and released", Why: "it waits for no others, so what one aggregate has held is not handled at the pace of Linger", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		q := b.newQueue(3, func(batch *millrace.Batch) { batch.Gate = &millrace.VersionGate{} })
		for _, m := range b.versions("ada", 2, 4) {
			q.feed.Send(t, m)
		}
		rig.Eventually(t, "all are held", func() bool { return b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`) == 3 })
		q.stores(slices.Concat(b.versions("ada", 1, 1), b.versions("bob", 1, 2)))
		assert.Equal(t, 6, b.effects())
	})},
	{Name: "what was held before all is forgotten", Why: "no batch of it begins an aggregate", Run: testdb.With(newGateBed, func(t *testing.T, b *bed) {
		q := b.newQueue(4, func(batch *millrace.Batch) {
			batch.Linger, batch.Gate = 20*time.Millisecond, &millrace.VersionGate{First: inbox.FirstSeen}
		})
		held := func(why string) int {
			var reasons []string
			require.NoError(t, b.db.SelectContext(t.Context(), &reasons, `SELECT reason FROM millrace_messages WHERE status = 7`))
			return len(slices.DeleteFunc(reasons, func(reason string) bool { return !strings.HasPrefix(reason, "waits "+why) }))
		}
		q.stores(b.versions("ada", 4, 4))
		early := b.versions("ada", 6, 7)
		for _, m := range early {
			q.feed.Send(t, m)
		}
		rig.Eventually(t, "both are held", func() bool { return held("for version 5 ") == len(early) })
		by := admin.Operator{Name: "ann", Reason: "a rebuild"}
		require.NoError(t, admin.New(b.store).Forget(t.Context(), "billing", 0, by))
		rig.Eventually(t, "both are held anew", func() bool { return held("until another message begins ") == len(early) })
		assert.Equal(t, 1, b.effects())
		q.feed.Send(t, b.versions("ada", 3, 3)[0])
		rig.Eventually(t, "it begins", func() bool { return b.effects() == 2 })
		for _, m := range b.versions("ada", 4, 5) {
			q.feed.Send(t, m)
		}
		rig.Eventually(t, "all are handled", func() bool { return b.effects() == 6 })
		rig.Eventually(t, "none is stored", func() bool { return b.db.Count(t, `SELECT COUNT(*) FROM millrace_messages`) == 0 })
	})},
}

package replay_test

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
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// journalBodies: what a consumer handled is sent again to it.
var journalBodies = []testdb.Body{
	{Name: "a rebuild from the journal, for one consumer", Why: "the queue delivers it in the new epoch, and nobody else gets it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(40)
		b.relay()
		rig.Eventually(b, "all are handled", func() bool { return b.sent() == 40 && b.pending() == 0 })
		b.truth(40)
		b.exec(`UPDATE projection SET total = 0, orders = 0`)
		b.put("projection", 1, order(0))
		b.durable("projection", 1, project)
		rig.Eventually(b, "the queue works", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
		b.exec(`UPDATE projection SET total = 0, orders = 0`)
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "projection", Epoch: 1})
		epoch := 0
		r := replay.Request{
			Name: "rebuild", From: replay.Journal(b.store), Filter: replay.Filter{Consumer: "projection", Epoch: &epoch},
			To: replay.Queue(queue), By: ada,
		}
		plan := b.plan(r)
		require.Len(t, plan.Consumers, 1)
		assert.Equal(t, 40, plan.Consumers[0].New)
		assert.Equal(t, 40, plan.Consumers[0].Before)
		assert.Equal(t, 1, plan.Consumers[0].Epoch)
		status := b.run(r)
		assert.Equal(t, 40, status.Sent)
		rig.Eventually(b, "they are handled", func() bool {
			return b.count(`SELECT SUM(orders) FROM projection`) == 40 && b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0
		})
		b.truth(40)
		assert.Equal(t, 40, b.sent(), "the broker saw none of them")
	})},
	{Name: "a rebuild from the journal of a consumer that goes on", Why: "the epoch that is meant at first is meant to the end", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(10)
		b.relay()
		rig.Eventually(b, "all are handled", func() bool { return b.sent() == 10 && b.pending() == 0 })
		b.exec(`UPDATE millrace_journal SET topic = ?`, []byte("orders")) // as behind a router
		b.epoch(1)
		to := &sink{}
		r := replay.Request{
			Name: "rebuild", From: replay.Journal(b.store), Filter: replay.Filter{Consumer: "projection"},
			To: replay.Publisher(to), By: ada, PerSecond: 4,
		}
		r.Progress = func(replay.Status) { // the new epoch keeps what it has handled meanwhile
			_, err := b.projection(order(99))
			require.NoError(t, err)
			to.fails = errors.New("the process ends")
		}
		status, err := b.replayer().Run(t.Context(), r)
		require.ErrorIs(t, err, to.fails)
		assert.Equal(t, 4, status.Sent)
		to.fails, r.Progress = nil, nil
		status = b.run(r)
		assert.Equal(t, 10, status.Sent)
		assert.Len(t, to.Messages(), 10)
		require.NotNil(t, status.Spec.Filter.Epoch)
		assert.Equal(t, 0, *status.Spec.Filter.Epoch)
	})},
	{Name: "a handler that changes its message", Why: "the journal and a recorded failure have it as it came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var fails error
		handle := millrace.Inbox{Store: b.store, Consumer: "unpacks", Options: inbox.Options{Journal: true, RecordFailures: true}}.Middleware(
			func(msg *message.Message) ([]*message.Message, error) {
				msg.Payload = message.Payload("unpacked")
				msg.Metadata.Set("correlation_id", "another")
				return nil, fails
			})
		as := func(want, got *message.Message) {
			t.Helper()
			assert.Equal(t, string(want.Payload), string(got.Payload))
			assert.Equal(t, want.Metadata, got.Metadata)
		}
		handled, failed := order(1), order(2)
		_, err := handle(handled.Copy())
		require.NoError(t, err)
		fails = errors.New("it fails")
		_, err = handle(failed.Copy())
		require.ErrorIs(t, err, fails)
		kept, err := admin.New(b.store).Journal(t.Context(), admin.JournalFilter{Consumer: "unpacks"}, 0, 10)
		require.NoError(t, err)
		require.Len(t, kept, 1)
		as(handled, kept[0].Message)
		open := rig.Find(t, b.store, admin.Filter{Consumer: "unpacks"})
		require.Len(t, open, 1)
		as(failed, &message.Message{Payload: open[0].Payload, Metadata: open[0].Metadata})
	})},
	{Name: "keys that are named", Why: "also one that is stored as its hash", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		long, odd := strings.Repeat("k", 200), "a\x01b"
		config := inbox.ConsumerConfig{Name: "named", Options: inbox.Options{Journal: true}}
		handle, err := b.store.Handler(config, func(*message.Message) ([]*message.Message, error) { return nil, nil })
		require.NoError(t, err)
		for _, key := range []string{long, odd, "another"} {
			_, err := handle(message.NewMessage(key, nil))
			require.NoError(t, err)
		}
		b.exec(`UPDATE millrace_journal SET uuid = 'of a producer'`)
		to := &sink{}
		r := replay.Request{
			Name: "named", From: replay.Journal(b.store), Filter: replay.Filter{Consumer: "named", IDs: []string{long, odd}},
			To: replay.Publisher(to), By: ada,
		}
		assert.Equal(t, 2, b.plan(r).LookedAt)
		_, err = b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, `message "of a producer" has no topic`, "it came without a router")
		assert.Empty(t, to.Messages())
		b.exec(`UPDATE millrace_journal SET topic = ?`, []byte("orders"))
		assert.Equal(t, 2, b.run(r).Sent)
	})},
	{Name: "an erased payload", Why: "it is left out, and told; what cannot be opened now ends the replay", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.orders(2)
		b.relay()
		rig.Eventually(b, "all are handled", func() bool { return b.sent() == 2 && b.pending() == 0 })
		to := &sink{}
		r := replay.Request{
			Name: "x", From: replay.Journal(b.store), Filter: replay.Filter{Consumer: "projection"}, To: replay.Publisher(to), By: ada,
		}
		b.exec(`UPDATE millrace_journal SET topic = ?`, []byte("orders"))
		b.exec(`UPDATE millrace_journal SET payload_form = 1 WHERE id = (SELECT * FROM (SELECT MIN(id) FROM millrace_journal) m)`)
		_, err := b.replayer().Run(t.Context(), r)
		require.ErrorContains(t, err, "Config.Payloads")
		b.exec(`UPDATE millrace_journal SET payload_form = 2 WHERE payload_form = 1`)
		status := b.run(r)
		assert.Equal(t, 1, status.Skipped)
		assert.Equal(t, 1, status.Sent)
		assert.Len(t, to.Messages(), 1)
		assert.Contains(t, strings.Join(b.events.Logs(), "\n"), "replay: skipping a message that cannot be read")
	})},
}

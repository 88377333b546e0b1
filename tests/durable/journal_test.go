package durable_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

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

func TestJournal(t *testing.T) {
	testdb.Conformance(t, journalBodies)
}

// journaling is a service whose consumer keeps a journal.
func (b *bed) journaling(durable pubsub.Durable, h func(*message.Message) error, more ...message.HandlerMiddleware) *service {
	b.Helper()
	all := append([]message.HandlerMiddleware{inboxOf(durable, inbox.Options{Journal: true})}, more...)
	return b.start(durable, silent(h), all...)
}

// journal returns what is kept, in its order.
func (b *bed) journal(store *inbox.Store) []admin.Journaled {
	b.Helper()
	kept, err := admin.New(store).Journal(b.Context(), admin.JournalFilter{Consumer: consumer}, 0, 100)
	require.NoError(b, err)
	return kept
}

var journalBodies = []testdb.Body{
	{Name: "keep what was handled", Why: "whole, once, in its order, and the story tells", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for mode := range 2 {
			durable := quick(b.store)
			durable.Mode = pubsub.Mode(mode)
			s := b.journaling(durable, effect)
			first, second := newMessage(), newMessage()
			for _, msg := range []*message.Message{first, first, second, first} {
				s.handles(msg)
			}
			kept := b.journal(b.store)
			require.Len(t, kept, 2)
			for i, msg := range []*message.Message{first, second} {
				assert.Equal(t, msg.UUID, kept[i].MessageID)
				assert.True(t, msg.Equals(kept[i].Message), "uuid, metadata and payload as they came")
				assert.Equal(t, "orders", kept[i].Topic)
				assert.WithinDuration(t, time.Now(), kept[i].ProcessedAt, time.Minute)
				assert.False(t, kept[i].ProcessedAt.Before(kept[i].ReceivedAt))
			}
			counts, err := admin.New(b.store).CountJournal(t.Context(), admin.JournalFilter{Consumer: consumer})
			require.NoError(t, err)
			require.Len(t, counts, 1)
			assert.Equal(t, 2, counts[0].Messages)
			assert.Equal(t, kept[1].ID, counts[0].LastID)
			for name, f := range map[string]admin.JournalFilter{
				"topic": {Topic: "invoices"}, "since": {Since: time.Now().Add(time.Hour)}, "until": {Until: time.Now().Add(-time.Hour)},
				"up to": {UpTo: -1},
			} {
				f.Consumer = consumer
				none, err := admin.New(b.store).Journal(t.Context(), f, 0, 10)
				require.NoError(t, err)
				assert.Empty(t, none, name)
			}
			few, err := admin.New(b.store).Journal(t.Context(), admin.JournalFilter{
				Consumer: consumer, Topic: "orders", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour), UpTo: kept[0].ID,
			}, 0, 10)
			require.NoError(t, err)
			assert.Len(t, few, 1)
			assert.True(t, rig.Story(t, b.store, first.UUID).Claims[0].Journaled)
			require.NoError(t, s.router.Close())
			b.db.Do(t, `DELETE FROM millrace_journal`)
		}
	})},
	{Name: "a blob store that takes nothing", Why: "a handled message is not to blame: no attempt counts, and nothing is poison", Run: testdb.With(newBed, unkept)},
	{Name: "a blob store that does not answer", Why: "Timeout runs out, and no attempt counts either", Run: testdb.With(newBed, unanswered)},
	{Name: "a journal of another consumer", Why: "off is the default, and nothing is kept", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.inboxed(quick(b.store), effect)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_journal`))
		assert.False(t, rig.Story(t, b.store, msg.UUID).Claims[0].Journaled)
		_, err := admin.New(b.store).Journal(t.Context(), admin.JournalFilter{Consumer: "nobody"}, 0, 10)
		require.ErrorIs(t, err, inbox.ErrNotFound)
		_, err = admin.New(b.store).Journal(t.Context(), admin.JournalFilter{}, 0, 10)
		require.ErrorContains(t, err, "no Consumer is given")
	})},
	{Name: "what failed is not kept until it ran", Why: "it is kept in the transaction of the run that was committed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var runs counter
		s := b.journaling(quick(b.store), func(msg *message.Message) error {
			if runs.run(msg) < 3 {
				return errors.Join(effect(msg), errBoom)
			}
			return effect(msg)
		})
		msg := newMessage()
		s.handles(msg)
		assert.Len(t, b.journal(b.store), 1)
	})},
	{Name: "what the version gate turns away", Why: "a stale one was not handled, a held one is when it is released", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.journaling(quick(b.store), effect, millrace.VersionGate{}.Middleware)
		first, second, stale := stamped("a", 1), stamped("a", 2), stamped("a", 1)
		assert.True(t, s.deliver(second))
		assert.Empty(t, b.journal(b.store), "it is held")
		assert.True(t, s.deliver(first))
		rig.Eventually(b, "both are applied", func() bool { return b.effects(first)+b.effects(second) == 2 && b.rows() == 0 })
		s.deliver(stale)
		var order []string
		for _, j := range b.journal(b.store) {
			order = append(order, j.MessageID)
		}
		assert.Equal(t, []string{first.UUID, second.UUID}, order)
	})},
	{Name: "what the version gate turns away out of the table", Why: "it was not handled, wherever it came from", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.journaling(storeFirst(b.store), effect, millrace.VersionGate{}.Middleware)
		stale := stamped("a", 1)
		s.handles(stamped("a", 1))
		s.handles(stamped("a", 2))
		assert.True(t, s.deliver(stale))
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
		assert.Zero(t, b.effects(stale))
		assert.Equal(t, 3, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 1`), "it has come")
		assert.Len(t, b.journal(b.store), 2)
	})},
	{Name: "purge the journal", Why: "a message lives as long as its claim, and its blob with it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := b.storeWith(inbox.Config{BlobsAbove: above, BlobGrace: time.Minute})
		s := b.journaling(quick(store), effect)
		msg := newMessage()
		msg.Payload = bytes.Repeat([]byte("x"), 10*above)
		assert.True(t, s.deliver(msg))
		require.NoError(t, s.router.Close())
		kept := b.journal(store)
		require.Len(t, kept, 1)
		assert.True(t, msg.Equals(kept[0].Message), "out of its blob")
		require.Equal(t, 1, b.registered())
		b.db.Do(t, `UPDATE millrace_blobs SET name = ?`, make([]byte, 16))
		b.db.Do(t, `UPDATE millrace_journal SET payload_ref = ?`, make([]byte, 16))
		rig.Purge(t, store)
		assert.Equal(t, 1, b.registered(), "the journal refers to it")
		assert.Len(t, b.journal(store), 1)
		b.db.Do(t, `UPDATE millrace_claims SET processed_at = processed_at - 864000000000`)
		rig.Eventually(b, "it goes with its claim", func() bool { // the service's janitor may be quicker
			rig.Purge(t, store)
			return len(b.journal(store)) == 0 && b.registered() == 0
		})
	})},
	{Name: "a sealed journal", Why: "what is erased cannot be had from it either", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		keys := &subjects{}
		store := b.sealing(keys)
		s := b.journaling(quick(store), effect)
		msg := of("ada", "secret")
		assert.True(t, s.deliver(msg))
		var stored []byte
		require.NoError(t, b.db.GetContext(t.Context(), &stored, `SELECT payload FROM millrace_journal`))
		assert.NotContains(t, string(stored), "secret")
		kept := b.journal(store)
		require.Len(t, kept, 1)
		assert.True(t, msg.Equals(kept[0].Message))
		keys.erase("ada")
		kept = b.journal(store)
		require.ErrorIs(t, kept[0].Unreadable, inbox.ErrErased)
		assert.Empty(t, kept[0].Message.Payload)
		assert.True(t, s.deliver(of("ada", "more")), "which is no reason not to handle what comes")
	})},
}

// unkept has a service journal messages while its blob store takes no blob.
func unkept(t *testing.T, b *bed) {
	var full atomic.Bool
	files := newBlobs(t)
	files.after = func(string) error {
		if full.Load() {
			return errFull
		}
		return nil
	}
	store, _ := b.filing(files, time.Hour)
	options := inbox.Options{Journal: true, RecordFailures: true}
	durable := storeFirst(store)
	durable.MaxAttempts = 2
	parked, stored := countOnPark(&durable), large()
	require.NoError(t, b.queue(store).Put(t.Context(), "orders", stored))
	full.Store(true)
	var poison, runs atomic.Int32
	outside := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err != nil && !errors.Is(err, inbox.ErrUnavailable) {
				poison.Add(1)
			}
			return produced, err
		}
	}
	b.start(durable, silent(func(msg *message.Message) error { runs.Add(1); return effect(msg) }), outside, inboxOf(durable, options))
	rig.Eventually(t, "it is tried more often than it may fail", func() bool { return runs.Load() > 4 })
	assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE attempts > 0 OR status = ?`, admin.Parked))
	assert.Zero(t, b.effects(stored))

	direct := millrace.Inbox{Store: store, Consumer: "direct", Options: options}
	msg := large()
	rig.MustFail(t, direct.Middleware(silent(effect)), msg.Copy(), inbox.ErrUnavailable, errFull.Error())
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Consumer: "batch", Options: options}, Max: 2, Linger: rig.Patience}
	together := silent(batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error {
		return rig.Exec(ctx, `UPDATE effects SET uuid = uuid`)
	}))
	var answers []<-chan error
	for range 2 {
		answers = append(answers, rig.Handle(together, large()))
	}
	for _, answer := range answers {
		require.ErrorIs(t, rig.Within(t, answer, "a batch is answered"), inbox.ErrUnavailable)
	}
	full.Store(false)
	must := func(h message.HandlerFunc) {
		_, err := h(msg.Copy())
		require.NoError(t, err)
	}
	must(direct.Middleware(silent(effect)))
	rig.Eventually(t, "all is handled", func() bool { return b.rows() == 0 && b.effects(stored) == 1 && b.effects(msg) == 1 })
	assert.Zero(t, poison.Load())
	assert.Zero(t, parked.Load())
	assert.Equal(t, 2, b.count(`SELECT COUNT(*) FROM millrace_journal`))
}

// silentBlobs takes nothing until it is well.
type silentBlobs struct {
	*blobs
	well chan struct{}
}

func (b *silentBlobs) Put(ctx context.Context, name string, body []byte) error {
	select {
	case <-b.well:
		return b.blobs.Put(ctx, name, body)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unanswered has a service journal messages while its blob store does not answer.
func unanswered(t *testing.T, b *bed) {
	files := &silentBlobs{blobs: newBlobs(t), well: make(chan struct{})}
	before, _ := b.filing(files.blobs, time.Hour)
	store, _ := b.filing(files, time.Hour)
	durable := storeFirst(store)
	durable.MaxAttempts = 2 // a run may be late without the blob store
	parked, stored := countOnPark(&durable), large()
	require.NoError(t, b.queue(before).Put(t.Context(), "orders", stored))
	var runs atomic.Int32
	in := millrace.Inbox{Store: store, Timeout: 3 * time.Second, Options: inbox.Options{Journal: true, RecordFailures: true}}
	b.start(durable, silent(func(msg *message.Message) error { runs.Add(1); return effect(msg) }), in.Middleware)
	rig.Eventually(t, "it is tried more often than it may fail", func() bool { return int(runs.Load()) > durable.MaxAttempts })
	assert.Zero(t, b.effects(stored))
	close(files.well)
	rig.Eventually(t, "it is handled", func() bool { return b.rows() == 0 && b.effects(stored) == 1 })
	assert.Zero(t, parked.Load())
}

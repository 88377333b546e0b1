package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPayloads(t *testing.T) {
	testdb.Conformance(t, append(payloadBodies, inboxPayloadBodies...))
}

const secret = "secret of \x00 alice"

var errDown = errors.New("the key service is down")

var payloadBodies = []testdb.Body{
	{Name: "a sealed payload", Why: "no row has it in plain, the handler and the operator do, and copies are known as such", Run: func(t *testing.T, db *testdb.DB) {
		b, runs := newBed(t, db), &counter{}
		store := b.sealing(&subjects{})
		q, msg := b.queue(store), of("alice", secret)
		require.NoError(t, q.Put(t.Context(), "orders", msg))
		assert.NotContains(t, string(b.stored()), "secret")
		require.NoError(t, q.Put(t.Context(), "orders", msg), "a copy, sealed to other bytes")
		assert.Equal(t, 1, b.rows())
		require.NoError(t, q.Put(t.Context(), "orders", message.NewMessage(msg.UUID, []byte("another"))))
		assert.Equal(t, "another", string(b.only(store, admin.Parked).Payload))
		story := rig.Story(t, store, msg.UUID)
		require.Len(t, story.Open, 2)
		assert.ElementsMatch(t, []string{secret, "another"}, []string{string(story.Open[0].Payload), string(story.Open[1].Payload)})
		s := b.inboxed(storeFirst(store), func(msg *message.Message) error {
			assert.Equal(t, secret, string(msg.Payload))
			if runs.run(msg) < 3 {
				return errBoom
			}
			return effect(msg)
		})
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 1 })
		assert.True(t, s.deliver(msg), "a copy of what is completed")
		rig.Eventually(b, "it is known", func() bool { return b.rows() == 1 })
		assert.Equal(t, 3, runs.of(msg))
	}},
	{Name: "a payload that was erased", Why: "failed for good, once, and nobody else has to wait", Run: func(t *testing.T, db *testdb.DB) {
		b, runs, keys := newBed(t, db), &counter{}, &subjects{}
		store := b.sealing(keys)
		alice, bob := of("alice", secret), of("bob", "bob's")
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", alice, bob))
		keys.erase("alice")
		durable := storeFirst(store)
		durable.OnPark = func(msg *message.Message, _ string) error {
			assert.True(t, msg.UUID != alice.UUID || len(msg.Payload) == 0, "what is stored is nobody's business")
			return nil
		}
		s := b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return effect(msg) })
		rig.Eventually(b, "what is left is decided", func() bool { return b.effects(bob) == 1 && b.open(admin.FailedTerminal) == 1 })
		failed := b.only(store, admin.FailedTerminal)
		assert.Equal(t, alice.UUID, failed.UUID)
		assert.Equal(t, "the payload was erased", failed.Reason)
		assert.Zero(t, failed.Attempts)
		assert.Nil(t, failed.Payload)
		require.ErrorIs(t, failed.Unreadable, inbox.ErrErased)
		story := rig.Story(t, store, alice.UUID)
		require.ErrorIs(t, story.Open[0].Unreadable, inbox.ErrErased)
		require.Len(t, story.History, 1)
		assert.Equal(t, failed.LastError, story.History[0].Error)
		require.ErrorIs(t, admin.New(store).Retry(t.Context(), failed.ID, ada, s.published), inbox.ErrErased)
		assert.True(t, s.deliver(alice), "a copy, for which there is no key")
		assert.Equal(t, 1, b.rows())
		require.NoError(t, admin.New(store).Discard(t.Context(), failed.ID, ada))
		late := of("alice", secret)
		assert.True(t, s.deliver(late), "a message of somebody who was erased before")
		rig.Eventually(b, "it has failed too", func() bool { return b.open(admin.FailedTerminal) == 1 })
		assert.Empty(t, b.stored())
		require.ErrorIs(t, b.only(store, admin.FailedTerminal).Unreadable, inbox.ErrErased)
		assert.Zero(t, runs.of(alice)+runs.of(late))
	}},
	{Name: "an outage of the key service", Why: "no attempt is spent, and it ends by itself", Run: func(t *testing.T, db *testdb.DB) {
		b, runs, keys := newBed(t, db), &counter{}, &subjects{}
		store := b.sealing(keys)
		msg := of("alice", secret)
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", msg))
		keys.failWith(errDown)
		durable := storeFirst(store)
		durable.MaxAttempts = 1
		b.inboxed(durable, func(msg *message.Message) error { runs.run(msg); return effect(msg) })
		rig.Eventually(b, "it was tried", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ? AND last_error IS NOT NULL`, admin.FailedRetryable) == 1
		})
		waits := b.only(store, admin.FailedRetryable)
		assert.Zero(t, waits.Attempts)
		assert.Contains(t, waits.LastError, errDown.Error())
		require.ErrorIs(t, waits.Unreadable, errDown)
		keys.failWith(nil)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.Equal(t, 1, runs.of(msg))
	}},
	{Name: "a key that is not to be had, while others are", Why: "such a message fails in the end; an outage never does", Run: func(t *testing.T, db *testdb.DB) {
		b, keys := newBed(t, db), &subjects{}
		store := b.sealing(keys)
		alice, carol := of("alice", secret), of("carol", secret)
		require.NoError(t, b.queue(store).Put(t.Context(), "orders", alice, carol))
		keys.lose("alice", errDown)
		keys.lose("carol", fmt.Errorf("the key service: %w", inbox.ErrUnavailable))
		others := 0
		b.beside(store, func() *message.Message { others++; return of("bob", "x") }, func() bool { return others > 20 && b.open(admin.Parked) == 1 })
		parked := b.only(store, admin.Parked)
		assert.Equal(t, alice.UUID, parked.UUID)
		assert.Equal(t, 3, parked.Attempts)
		assert.Equal(t, "failed 3 times, last because its payload could not be opened", parked.Reason)
		assert.Contains(t, parked.LastError, errDown.Error())
		waits := b.only(store, admin.FailedRetryable)
		assert.Equal(t, carol.UUID, waits.UUID)
		assert.Zero(t, waits.Attempts)
	}},
	{Name: "an outage met by a suspect", Why: "it was charged for a try that is not made", Run: func(t *testing.T, db *testdb.DB) {
		b, keys := newBed(t, db), &subjects{}
		store := b.sealing(keys)
		q := b.queue(store)
		require.NoError(t, q.Put(t.Context(), "orders", of("alice", secret)))
		taken := b.takes(q, 1)
		_, err := q.HandOut(t.Context(), taken...)
		require.NoError(t, err)
		keys.failWith(errDown)
		db.Do(t, `UPDATE millrace_messages SET due_at = 1`) // its lease lapses
		rig.Eventually(b, "it cannot be opened", func() bool {
			taken := rig.Take(t, q, 10)
			assert.Empty(t, taken)
			return b.open(admin.FailedRetryable) == 1
		})
		assert.Zero(t, b.only(store, admin.FailedRetryable).Attempts)
	}},
	{Name: "a hook that comes and goes", Why: "rows say what they are, and one that needs a hook waits for it", Run: func(t *testing.T, db *testdb.DB) {
		b, keys := newBed(t, db), &subjects{}
		plain, sealed, large := of("bob", "plain"), of("alice", secret), of("bob", strings.Repeat("x", 50))
		blobs, err := payload.NewFileBlobs(t.TempDir())
		require.NoError(t, err)
		sealing, filing := b.sealing(keys), b.storeWith(inbox.Config{Blobs: blobs, BlobsAbove: 40})
		require.NoError(t, b.queue(b.store).Put(t.Context(), "orders", plain))
		require.NoError(t, b.queue(sealing).Put(t.Context(), "orders", sealed))
		require.NoError(t, b.queue(filing).Put(t.Context(), "orders", large))

		s := b.inboxed(storeFirst(b.store), effect)
		rig.Eventually(b, "it waits for its hook", func() bool {
			return b.effects(plain) == 1 && b.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = 4 AND attempts = 0`) == 2
		})
		require.NoError(t, s.router.Close())
		for uuid, names := range map[string]string{sealed.UUID: "set Config.Payloads", large.UUID: "set Config.Blobs"} {
			story := rig.Story(t, b.store, uuid)
			require.Len(t, story.Open, 1)
			require.ErrorContains(t, story.Open[0].Unreadable, names)
			assert.Contains(t, story.Open[0].LastError, names)
		}
		b.inboxed(storeFirst(b.sealing(keys, inbox.Config{Blobs: blobs})), effect)
		rig.Eventually(b, "all are handled", func() bool { return b.effects(sealed) == 1 && b.effects(large) == 1 && b.rows() == 0 })
	}},
}

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
	{Name: "an outcome, in a process with another key", Why: "it stays for one that has the key", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var opened atomic.Int64
		of := func(key byte) *service {
			ring := payload.KeyRing{Current: "k", Keys: map[string][]byte{"k": bytes.Repeat([]byte{key}, 32)}}
			store := b.sealing(countedKeys{ring, &opened})
			return b.start(storeFirst(store), func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("invoice", []byte("7 EUR"))}, effect(msg)
			}, millrace.Inbox{Store: store}.Middleware)
		}
		s := of(1)
		s.published.FailWith(errBoom)
		msg := newMessage()
		require.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
		require.NoError(t, s.router.Close())
		opened.Store(0)
		s = of(2)
		rig.Eventually(b, "it was tried several times", func() bool { return opened.Load() > 10 || b.rows() == 0 })
		assert.Empty(t, s.published.Messages())
		require.NoError(t, s.router.Close())
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`))
		s = of(1)
		rig.Eventually(b, "it is published", func() bool { return b.rows() == 0 && len(s.published.Messages()) == 1 })
		assert.Equal(t, 1, b.effects(msg))
	})},
}

// countedKeys counts how often a key is asked for to open something.
type countedKeys struct {
	payload.KeyRing
	opened *atomic.Int64
}

func (c countedKeys) OpenKey(ctx context.Context, info payload.Info, id string) ([]byte, error) {
	c.opened.Add(1)
	return c.KeyRing.OpenKey(ctx, info, id)
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

package durable_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
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

// releases returns what starts processes of the last release, which knows messages by their UUID, and of
// the next one, which knows them by their order and looks for their UUID as well.
func (b *bed) releases(mode pubsub.Mode, h message.HandlerFunc) (last, next func() *service) {
	durable := func() pubsub.Durable {
		d := quick(b.process())
		d.Mode, d.MaxAttempts = mode, 1000
		return d
	}
	last = func() *service {
		d := durable()
		return b.start(d, h, inboxOf(d))
	}
	next = func() *service {
		d := durable()
		d.Epoch, d.Key = 1, inbox.ByMetadata("order")
		return b.start(d, h, inboxOf(d, inbox.Options{FormerKey: inbox.ByUUID()}))
	}
	return last, next
}

// ofOrder is a message that both releases have a key of.
func ofOrder() *message.Message {
	msg := newMessage()
	msg.Metadata.Set("order", watermill.NewShortUUID())
	return msg
}

// failingWhile is a handler that fails while it is told to.
func failingWhile(failing *atomic.Bool) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if failing.Load() {
			return nil, errBoom
		}
		return nil, effect(msg)
	}
}

// formerBodies: a key that changes in a raised epoch, and what is stored.
var formerBodies = []testdb.Body{
	{Name: "a former key of a message that failed in the last release", Why: "it moves, is handled once, and stays known there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var failing atomic.Bool
		failing.Store(true)
		last, next := b.releases(pubsub.StoreOnFailure, failingWhile(&failing))
		msg := ofOrder()
		before := last()
		assert.True(t, before.deliver(msg))
		require.NoError(t, before.router.Close())
		failing.Store(false)
		after := next()
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		assert.True(t, after.deliver(msg))
		assert.True(t, last().deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key of a message that failed in the next release", Why: "the last one may have handled it since", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var failing atomic.Bool
		failing.Store(true)
		_, next := b.releases(pubsub.StoreOnFailure, failingWhile(&failing))
		last, _ := b.releases(pubsub.StoreOnFailure, silent(effect))
		msg := ofOrder()
		after := next()
		assert.True(t, after.deliver(msg))
		assert.True(t, last().deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
		failing.Store(false)
		rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
		assert.True(t, after.deliver(msg))
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key, and a stored copy of what the last release handled", Why: "the row moves, and that it was handled stays known", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.handledMoves(func(last, _ func() *service, msg *message.Message) {
			b.settled(last(), msg)
			b.storeIn(inbox.QueueConfig{}, msg)
			queue := b.storeIn(inbox.QueueConfig{Epoch: 1, Key: inbox.ByMetadata("order")}, ofOrder())
			for _, l := range rig.Take(b, queue, 2) { // before a janitor closes it
				require.NoError(t, l.PutBack(t.Context()))
			}
		})
	})},
	{Name: "a former key, and an outcome that the last release could not publish", Why: "the outcome moves, and that the message was handled stays known", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.handledMoves(func(last, _ func() *service, msg *message.Message) {
			s := last()
			s.published.FailWith(errBoom)
			assert.True(t, s.deliver(msg))
			rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
			require.NoError(t, s.router.Close())
		})
	})},
	{Name: "a former key that a stored message shares with what this release handled", Why: "it is handled, and the other one stays known to the last release", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.handledMoves(func(_, next func() *service, msg *message.Message) {
			b.settled(next(), msg)
			other := ofOrder()
			other.UUID, other.Payload = msg.UUID, message.Payload("another")
			b.storeIn(inbox.QueueConfig{}, other)
			s := next()
			rig.Eventually(b, "the other one is handled", func() bool { return b.effects(msg) == 2 })
			require.NoError(t, s.router.Close())
		})
	})},
	{Name: "a collision of the last release that is tried again", Why: "it is the distinct message it is", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		last, next := b.releases(pubsub.StoreFirst, silent(effect))
		msg := ofOrder()
		b.settled(last(), msg)
		s := last()
		s.parks(another(msg))
		require.NoError(t, s.router.Close())
		next()
		rig.Eventually(b, "it moves", func() bool { return b.moved() == 1 })
		_, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 2 && b.rows() == 0 })
	})},
	{Name: "a collision that the last release has at the moment", Why: "a copy is one, and no handler runs for nothing", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var runs counter
		last, next := b.releases(pubsub.StoreFirst, func(msg *message.Message) ([]*message.Message, error) {
			runs.run(msg)
			return nil, effect(msg)
		})
		msg := ofOrder()
		b.settled(last(), msg)
		s := last()
		s.parks(another(msg))
		require.NoError(t, s.router.Close())
		_, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		require.Len(t, rig.TakeOut(t, b.storeIn(inbox.QueueConfig{}), 1, 1), 1)
		assert.True(t, next().deliver(another(msg)))
		rig.Eventually(b, "the copy is closed", func() bool { return b.moved() == 0 })
		assert.Equal(t, []int{1, 1}, []int{runs.of(msg), b.rows()})
	})},
	{Name: "a former key of a message that failed, and could not be kept", Why: "nothing of it moves, so a stored copy takes its place", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		last, next := b.releases(pubsub.StoreFirst, silent(effect))
		msg := ofOrder()
		b.settled(last(), msg)
		b.db.Do(t, `UPDATE millrace_claims SET result = 0`)
		b.db.Do(t, `DELETE FROM effects`)
		b.settled(next(), msg)
		b.settled(last(), msg)
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "a former key within a topic, and a router's subscriber decorator", Why: "a stored message is told its topic by its row", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.formerOfRouter(inbox.ByUUID().WithinTopic())
	})},
	{Name: "a former key, and a message that has another UUID in the inbox", Why: "its queue had the key of the one that came", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.formerOfRouter(inbox.ByUUID(), func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				c := msg.CopyWithContext()
				c.UUID = "inner"
				return h(c)
			}
		})
	})},
	{Name: "a former key, and messages that both releases store", Why: "one of them handles each", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stormOfReleases(pubsub.StoreFirst)
	})},
	{Name: "a former key, and messages of which some fail in both releases", Why: "one of them handles each, and its outcome goes out", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.stormOfReleases(pubsub.StoreOnFailure)
	})},
}

// settled has s handle msg, or take it for a copy, and ends s.
func (b *bed) settled(s *service, msg *message.Message) {
	b.Helper()
	assert.True(b, s.deliver(msg))
	rig.Eventually(b, "it is closed", func() bool { return b.rows() == 0 })
	require.NoError(b, s.router.Close())
}

// storeIn stores msgs in a queue that nobody delivers from.
func (b *bed) storeIn(config inbox.QueueConfig, msgs ...*message.Message) *inbox.Queue {
	b.Helper()
	config.Consumer = consumer
	queue := rig.Queue(b, b.store, config)
	require.NoError(b, queue.Put(b.Context(), "orders", msgs...))
	return queue
}

// moved counts the open messages of epoch 1.
func (b *bed) moved() int {
	b.Helper()
	return b.count(`SELECT COUNT(*) FROM millrace_messages m JOIN millrace_consumers c ON c.id = m.consumer WHERE c.epoch = 1`)
}

// handledMoves has a message handled and a row of it moved to the new epoch. A copy that a process of the last
// release gets after that is a copy.
func (b *bed) handledMoves(handle func(last, next func() *service, msg *message.Message)) {
	b.Helper()
	last, next := b.releases(pubsub.StoreFirst, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(watermill.NewUUID(), nil)}, effect(msg)
	})
	msg := ofOrder()
	handle(last, next, msg)
	handled := b.effects(msg)
	after := next()
	rig.Eventually(b, "all has moved", func() bool { return b.rows() == 0 })
	require.NoError(b, after.router.Close())
	b.settled(last(), msg)
	assert.Equal(b, handled, b.effects(msg))
}

// formerOfRouter has one pubsub.Durable serve a router, in which a message is known by key, and then by its order.
func (b *bed) formerOfRouter(key inbox.Key, between ...message.HandlerMiddleware) {
	b.Helper()
	start := func(key, former inbox.Key, epoch int) *service {
		durable := storeFirst(b.process())
		durable.Key, durable.Epoch = key, epoch
		return b.decorated(durable, effect, append(between, millrace.Inbox{
			Store: durable.Store, Consumer: consumer, Key: key, Options: inbox.Options{FormerKey: former, Epoch: epoch},
		}.Middleware)...)
	}
	msg := ofOrder()
	b.settled(start(key, inbox.Key{}, 0), msg)
	b.settled(start(inbox.ByMetadata("order"), key, 1), msg)
	assert.Equal(b, 1, b.count(`SELECT COUNT(*) FROM effects`))
}

// stormOfReleases gives all messages to all processes of both releases. Handlers and publishers fail now and then.
func (b *bed) stormOfReleases(mode pubsub.Mode) {
	b.Helper()
	h := func(msg *message.Message) ([]*message.Message, error) {
		err := effect(msg)
		if rand.N(4) == 0 {
			err = errors.Join(err, errBoom)
		}
		invoice := message.NewMessage(watermill.NewUUID(), nil)
		invoice.Metadata.Set("of", msg.UUID)
		return []*message.Message{invoice}, err
	}
	last, next := b.releases(mode, h)
	services := []*service{last(), next(), last(), next()}
	all := make([]*message.Message, 15)
	for i := range all {
		all[i] = ofOrder()
	}
	var wg sync.WaitGroup
	for i, s := range services {
		if i < 2 {
			s.published.FailWith(errBoom)
		}
		for _, i := range rand.Perm(len(all)) {
			wg.Go(func() {
				for !s.deliver(all[i]) { //nolint:revive // a nack brings it again
				}
			})
		}
	}
	rig.Eventually(b, "most are handled", func() bool { return b.count(`SELECT COUNT(*) FROM effects`) > len(all)/2 })
	for _, s := range services {
		s.published.FailWith(nil)
	}
	wg.Wait()
	rig.Eventually(b, "nothing is left", func() bool { return b.rows() == 0 })
	outcomes := map[string]map[string]bool{}
	for _, s := range services {
		for _, invoice := range s.published.Messages() {
			of := invoice.Metadata.Get("of")
			if outcomes[of] == nil {
				outcomes[of] = map[string]bool{}
			}
			outcomes[of][invoice.UUID] = true
		}
	}
	for _, msg := range all {
		assert.Equal(b, 1, b.effects(msg))
		assert.Len(b, outcomes[msg.UUID], 1, "one invoice, however often")
	}
}

package durable_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// epochs returns what starts services of one consumer with a handler that fails on demand.
func (b *bed) epochs(failing *atomic.Bool) (start func(epoch int) *service) {
	return func(epoch int) *service {
		durable := quick(b.store)
		durable.Mode, durable.Epoch, durable.MaxAttempts = pubsub.StoreFirst, epoch, 1
		return b.start(durable, failingWhile(failing), inboxOf(durable))
	}
}

var epochBodies = []testdb.Body{
	{Name: "an epoch that is raised", Why: "what is unfinished is finished in the new one, whatever its state", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		states := map[admin.Status]*message.Message{}
		for _, s := range []admin.Status{
			admin.Received, admin.InProgress, admin.FailedRetryable, admin.FailedTerminal, admin.Parked, admin.Held,
		} {
			states[s] = newMessage()
			b.storeIn(inbox.QueueConfig{}, states[s])
			b.db.Do(t, `UPDATE millrace_messages SET status = ? WHERE uuid = ?`, s, []byte(states[s].UUID))
		}
		b.db.Do(t, `UPDATE millrace_messages SET due_at = due_at + 3600000000 WHERE status IN (?, ?)`, admin.InProgress, admin.Held)
		b.db.Do(t, `UPDATE millrace_messages SET lease_token = 5 WHERE status = ?`, admin.InProgress)

		var failing atomic.Bool
		b.epochs(&failing)(1)
		for _, s := range []admin.Status{admin.Received, admin.FailedRetryable, admin.Held} {
			rig.Eventually(b, s.String()+" is handled", func() bool { return b.effects(states[s]) == 1 })
		}
		rig.Eventually(b, "the rest is where it belongs", func() bool {
			return b.rows() == 3 && b.moved() == 2
		})
		assert.Equal(t, []int{1, 1, 1}, []int{b.open(admin.Parked), b.open(admin.FailedTerminal), b.open(admin.InProgress)})
		assert.Equal(t, 0, b.effects(states[admin.InProgress]), "somebody has it")
	})},
	{Name: "an epoch that is raised on a slow database", Why: "what has moved in time is committed, however much is left",
		Run: wired(func(t *testing.T, b *bed, wire *servers.Wire, durable pubsub.Durable, _ *rig.Events) {
			b.storeIn(inbox.QueueConfig{}, newMessages(100)...)
			wire.Slow(20 * time.Millisecond)
			queue := rig.Queue(t, durable.Store, inbox.QueueConfig{Consumer: consumer, Epoch: 1})
			rig.Eventually(b, "the first ones are delivered", func() bool { return len(rig.Take(t, queue, 10)) > 0 })
		})},
	{Name: "a message that cannot move to a raised epoch", Why: "others are delivered, and the log says so; in an order they wait", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.storeIn(inbox.QueueConfig{}, newMessage())
		pool, events := faults.Open(t, b.db), &rig.Events{}
		pool.Set(faults.Plan{Before: faults.At("SET due_at = CASE status WHEN 7", func() error { return errFault })})
		store := rig.NewStore(t, pool.DB, inbox.Config{Logger: events})
		queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, Epoch: 1})
		require.NoError(t, queue.Put(t.Context(), "orders", newMessage()))
		assert.Len(t, rig.Take(t, queue, 10), 1)
		assert.Equal(t, 1, events.Said("could not be moved to the new one; retrying: "))
		ordered := rig.Queue(t, store, inbox.QueueConfig{Consumer: consumer, Epoch: 1, OrderKey: func(*message.Message) (string, error) { return "", nil }})
		_, _, err := ordered.Take(t.Context(), 10, time.Second)
		require.ErrorIs(t, err, errFault)
	})},
	{Name: "a failed message in a raised epoch", Why: "its claim moves with it: a late copy does not run beside it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		var failing atomic.Bool
		failing.Store(true)
		start := b.epochs(&failing)
		before := start(0)
		msg := newMessage()
		before.parks(msg)
		require.NoError(t, before.router.Close())

		failing.Store(false)
		after := start(1)
		rig.Eventually(b, "it moves", func() bool { return b.moved() == 1 })
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_claims`))
		assert.True(t, after.deliver(msg), "it is stored already")
		assert.Equal(t, 1, b.rows())
		assert.Equal(t, 0, b.effects(msg), "parked still")
	})},
	{Name: "a message that the new epoch knows", Why: "the old row is closed, and the handler runs once in each epoch at most", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		var failing atomic.Bool
		start := b.epochs(&failing)
		now := start(1)
		assert.True(t, now.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 })
		require.NoError(t, now.router.Close())

		other := newMessage()
		b.storeIn(inbox.QueueConfig{}, msg, other)
		start(1)
		rig.Eventually(b, "the other one is handled", func() bool { return b.effects(other) == 1 && b.rows() == 0 })
		assert.Equal(t, 1, b.effects(msg))
	})},
	{Name: "an outcome of a raised epoch", Why: "it is published, and the new epoch handles its message again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		s := b.again(0)
		s.published.FailWith(errBoom)
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
		require.NoError(t, s.router.Close())

		s = b.again(1)
		rig.Eventually(b, "the outcome is published", func() bool { return b.rows() == 0 })
		assert.Equal(t, 1, b.effects(msg))
		assert.Len(t, s.published.Messages(), 1)
		assert.Zero(t, b.outcomes())
		b.rebuilds(s, msg)
		assert.Len(t, s.published.Messages(), 2)
	})},
	{Name: "an outcome of a raised epoch that has handled its message again", Why: "it is published all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		s := b.again(0)
		s.published.FailWith(errBoom)
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled", func() bool { return b.open(admin.Settling) == 1 })
		require.NoError(t, s.router.Close())

		b.handledIn(1, msg)
		s = b.again(1)
		rig.Eventually(b, "the older row is closed", func() bool { return b.rows() == 0 })
		assert.Len(t, s.published.Messages(), 1)
		assert.Zero(t, b.outcomes())
		assert.Equal(t, 2, b.effects(msg))
	})},
	{Name: "a stored copy of a handled message in a raised epoch", Why: "it is closed, and the new epoch handles the message again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.settled(b.again(0), msg)
		b.storeIn(inbox.QueueConfig{}, msg)
		b.takes(rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, Epoch: 1}), 0) // before a janitor closes it
		assert.Zero(t, b.rows())
		b.rebuilds(b.again(1), msg)
	})},
	{Name: "a stored message with the key of a handled one in a raised epoch", Why: "it waits for an operator, and the new epoch handles the other one again", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage()
		b.settled(b.again(0), msg)
		b.storeIn(inbox.QueueConfig{}, another(msg))
		s := b.again(1)
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		assert.Equal(t, 1, b.only(b.store, admin.Parked).Epoch)
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "the other one is handled", func() bool { return b.effects(msg) == 2 })
		assert.True(t, s.deliver(another(msg)), "it is stored already")
		_, err := admin.New(b.store).RetryAll(t.Context(), admin.Filter{}, ada, nil, admin.Pace{})
		require.NoError(t, err)
		rig.Eventually(b, "it is handled too", func() bool { return b.effects(msg) == 3 && b.rows() == 0 })
	})},
	{Name: "a key of another source in a raised epoch", Why: "what moves is known by the new key", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg, twin := b.sharingOrder()
		b.storeIn(inbox.QueueConfig{}, msg)
		s := b.byOrder(inbox.CollisionDefault)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
		twin.Payload = msg.Payload
		assert.True(t, s.deliver(twin))
		rig.Eventually(b, "its twin was decided on", func() bool { return b.rows() == 0 })
		assert.Equal(t, 0, b.effects(twin))
	})},
	{Name: "a key of another source that two payloads share, one of them handled", Why: "they are two messages: what the setting says becomes of the other", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.besideHandled(inbox.CollisionPark)
		b.byOrder(inbox.CollisionPark)
		rig.Eventually(b, "the other one is parked", func() bool { return b.open(admin.Parked) == 1 && b.rows() == 1 })
		b.retriedAsDistinct(other)
	})},
	{Name: "a key of another source that two payloads share, where collisions are dropped", Why: "the service says so, and it is counted", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.besideHandled(inbox.CollisionDrop)
		dropped := b.byOrder(inbox.CollisionDrop).collisions
		rig.Eventually(b, "the other one is dropped", func() bool { return b.rows() == 0 && dropped.Load() == 1 })
		assert.Equal(t, 0, b.effects(other))
	})},
	{Name: "a key of another source that two payloads share, where collisions fail", Why: "it has no source that could stop: an operator is told", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.besideHandled(inbox.CollisionFail)
		b.byOrder(inbox.CollisionFail)
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		found := b.only(b.store, admin.Parked)
		assert.Equal(t, "failed 10 times", found.Reason)
		assert.Contains(t, found.LastError, inbox.ErrCollision.Error())
		require.NoError(t, admin.New(b.store).Discard(t.Context(), found.ID, ada))
		assert.Zero(t, b.rows())
		assert.Zero(t, b.effects(other))
	})},
	{Name: "a key of another source of a message that is forgotten meanwhile", Why: "what is discarded is closed under that key", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.besideHandled(inbox.CollisionFail)
		s := b.byOrder(inbox.CollisionFail)
		rig.Eventually(b, "it is parked", func() bool { return b.open(admin.Parked) == 1 })
		b.db.Do(t, `DELETE FROM millrace_claims`)
		require.NoError(t, admin.New(b.store).Discard(t.Context(), b.only(b.store, admin.Parked).ID, ada))
		assert.True(t, s.deliver(other))
		rig.Eventually(b, "its copy was decided on", func() bool { return b.rows() == 0 })
		assert.Zero(t, b.effects(other))
	})},
	{Name: "a key of another source that two payloads share, both stored", Why: "the second is parked as when it arrives, and tried again it is a distinct message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		one, other := b.sharingOrder()
		b.storeIn(inbox.QueueConfig{}, one, other)
		b.byOrder(inbox.CollisionDrop)
		rig.Eventually(b, "one is handled and one parked", func() bool {
			return b.effects(one) == 1 && b.open(admin.Parked) == 1 && b.rows() == 1
		})
		b.retriedAsDistinct(other)
	})},
	{Name: "a key of another source of a parked message, known as that of another", Why: "it stays parked, with its reason, until an operator decides", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		other := b.besideHandled(inbox.CollisionDrop)
		b.db.Do(t, `UPDATE millrace_messages SET status = ?, reason = ?`, admin.FailedTerminal, []byte("for a reason"))
		b.byOrder(inbox.CollisionDrop)
		rig.Eventually(b, "it moves", func() bool { return b.moved() == 1 })
		found := b.only(b.store, 0)
		assert.Equal(t, []any{admin.FailedTerminal, "for a reason"}, []any{found.Status, found.Reason})
		b.retriedAsDistinct(other)
	})},
	{Name: "an order key over two epochs", Why: "what the old release has is first, also if it came a moment ago", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		one := func(*message.Message) (string, error) { return "one", nil }
		last := b.storeIn(inbox.QueueConfig{OrderKey: one}, newMessage())
		next := rig.Queue(t, b.process(), inbox.QueueConfig{Consumer: consumer, Epoch: 1, OrderKey: one})
		b.takes(next, 1)
		b.db.Do(t, `DELETE FROM millrace_messages`)
		assert.Empty(t, rig.Take(t, next, 10), "it has looked, and nothing is left")
		first := newMessage()
		require.NoError(t, last.Put(t.Context(), "orders", first))
		taken := b.takes(last, 1)
		require.NoError(t, next.Put(t.Context(), "orders", newMessage()))
		assert.Empty(t, rig.Take(t, next, 10), "the old release has one before it")
		require.NoError(t, taken[0].PutBack(t.Context()))
		rig.Eventually(b, "one is due", func() bool {
			taken = rig.Take(t, next, 10)
			return len(taken) == 1
		})
		msg, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		assert.Equal(t, first.UUID, msg.UUID)
	})},
}

// again starts a service that keeps a journal, in an epoch.
func (b *bed) again(epoch int) *service {
	b.Helper()
	durable := storeFirst(b.process())
	durable.Epoch = epoch
	return b.start(durable, invoicing, inboxOf(durable, inbox.Options{Journal: true}))
}

// rebuilds has s, in epoch 1, handle what epoch 0 has handled.
func (b *bed) rebuilds(s *service, msg *message.Message) {
	b.Helper()
	journaled := func(epoch int) int {
		return b.count(`SELECT COUNT(*) FROM millrace_journal j JOIN millrace_consumers c ON c.id = j.consumer WHERE c.epoch = ?`, epoch)
	}
	assert.Equal(b, []int{1, 0}, []int{journaled(0), journaled(1)})
	assert.True(b, s.deliver(msg))
	rig.Eventually(b, "it is decided on", func() bool { return b.rows() == 0 })
	assert.Equal(b, 2, b.effects(msg))
	assert.Equal(b, []int{1, 1}, []int{journaled(0), journaled(1)})
}

// sharingOrder returns two messages of one order.
func (b *bed) sharingOrder() (one, other *message.Message) {
	one, other = ofOrder(), newMessage()
	other.Metadata, other.Payload = one.Copy().Metadata, message.Payload("another")
	return one, other
}

// besideHandled has a message handled in epoch 1, and returns another one of its order, which is stored in epoch 0.
func (b *bed) besideHandled(setting inbox.OnCollision) (other *message.Message) {
	b.Helper()
	one, other := b.sharingOrder()
	s := b.byOrder(setting)
	s.handles(one)
	require.NoError(b, s.router.Close())
	b.storeIn(inbox.QueueConfig{}, other)
	return other
}

// orderService knows messages by their order, in epoch 1.
type orderService struct {
	*service
	collisions *atomic.Int32
}

func (b *bed) byOrder(setting inbox.OnCollision) orderService {
	b.Helper()
	o := orderService{collisions: &atomic.Int32{}}
	count := inbox.On(func(context.Context, inbox.Event) { o.collisions.Add(1) }, inbox.KindCollision)
	store := rig.NewStore(b, b.db.Open(b).DB, inbox.Config{WithoutPlugin: true, PurgeInterval: time.Second, Observers: []inbox.Observer{count}})
	durable := storeFirst(store)
	durable.Epoch, durable.Key = 1, inbox.ByMetadata("order")
	o.service = b.inboxed(durable, effect, inbox.Options{OnCollision: setting})
	return o
}

// retriedAsDistinct has an operator try again all that is parked: msg is handled, beside the other of its key.
func (b *bed) retriedAsDistinct(msg *message.Message) {
	b.Helper()
	_, err := admin.New(b.store).RetryAll(b.Context(), admin.Filter{}, ada, nil, admin.Pace{})
	require.NoError(b, err)
	rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
}

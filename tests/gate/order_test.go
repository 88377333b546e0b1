package gate_test

import (
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

func TestOrderKey(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, orderBodies)
}

// orderBodies: a gate behind a queue that keeps an order of its own.
var orderBodies = []testdb.Body{
	{Name: "a gap, and the aggregate as order key", Why: "what is held lets its predecessor pass, which stands behind it",
		Run: patient(millrace.VersionGate{})},
	{Name: "a gap, one key for two aggregates", Why: "only the aggregate with the gap waits",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.line(byCustomer, change("a", 1), change("a", 3), change("b", 1), change("b", 2))
			b.ordered(millrace.VersionGate{}, byCustomer)
			rig.Eventually(b, "the other aggregate goes on", func() bool { return len(b.applied("b")) == 2 })
			assert.Equal(t, upTo(1), b.applied("a"))
			assert.Equal(t, 1, b.open(admin.Held))
			b.line(byCustomer, change("a", 4), change("b", 3), change("a", 2), change("b", 4))
			rig.Eventually(b, "all are applied", func() bool { return len(b.applied("a"))+len(b.applied("b")) == 8 })
			b.eventually("a", 4)
			b.eventually("b", 4)
		})},
	{Name: "a gap that fails, and the aggregate as order key", Why: "the predecessor stands behind what would come again",
		Run: patient(millrace.VersionGate{OnGap: inbox.GapFail})},
	{Name: "a version that comes twice, and the aggregate as order key", Why: "nothing behind it needs what the gate parked", Run: testdb.With(newTunedBed,
		func(t *testing.T, b *bed) {
			b.line(byAggregate, change("a", 1), change("a", 1), change("a", 2))
			b.ordered(millrace.VersionGate{}, byAggregate)
			rig.Eventually(b, "the line goes on", func() bool { return len(b.applied("a")) == 2 })
			assert.Equal(t, upTo(2), b.applied("a"))
			assert.Equal(t, 1, b.open(admin.Parked))
		})},
	{Name: "parked for its predecessor, which comes late", Why: "nobody can do anything with it before that one passes",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.store = b.newStore(b.db.DB, inbox.Config{PurgeInterval: 20 * time.Millisecond})
			b.line(byAggregate, change("a", 1), change("a", 3), change("a", 4))
			b.ordered(millrace.VersionGate{MaxHeld: 1}, byAggregate)
			rig.Eventually(b, "one is held, one is too many", func() bool { return b.open(admin.Held) == 1 && b.open(admin.Parked) == 1 })
			b.expireHeld()
			b.line(byAggregate, change("a", 2))
			rig.Eventually(b, "the predecessor passes", func() bool { return len(b.applied("a")) == 2 })
			b.retryParked()
			b.eventually("a", 4)
		})},
}

func patient(gate millrace.VersionGate) func(t *testing.T, db *testdb.DB) {
	return testdb.With(newTunedBed, func(_ *testing.T, b *bed) {
		b.line(byAggregate, change("a", 1), change("a", 3), change("a", 2), change("a", 4))
		b.ordered(gate, byAggregate)
		b.eventually("a", 4)
	})
}

func byAggregate(msg *message.Message) (string, error) {
	return msg.Metadata.Get(inbox.AggregateField), nil
}

func byCustomer(*message.Message) (string, error) { return "customer", nil }

type orderKey = func(*message.Message) (string, error)

// line stores messages in this order.
func (b *bed) line(key orderKey, msgs ...*message.Message) {
	b.Helper()
	q := rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer, OrderKey: key})
	require.NoError(b, q.Put(b.Context(), "changes", msgs...))
}

// ordered runs a router whose queue has an order key.
func (b *bed) ordered(gate millrace.VersionGate, key orderKey) {
	b.Helper()
	sub, err := pubsub.Durable{
		Store: b.store, Consumer: consumer, Mode: pubsub.StoreFirst, OrderKey: key,
		MinBackoff: 10 * time.Millisecond, Poll: 20 * time.Millisecond,
	}.Decorate(rig.NewFeed())
	require.NoError(b, err)
	router := b.newRouter(b.store, gate)
	router.AddConsumerHandler(consumer, "changes", sub, apply)
	rig.Run(b, router)
}

// expireHeld parks what is held, as if it had been held too long.
func (b *bed) expireHeld() {
	b.Helper()
	b.db.Do(b, `UPDATE millrace_messages SET due_at = 1 WHERE status = 7`)
	rig.Eventually(b, "what was held is parked", func() bool { return b.open(admin.Held) == 0 })
}

// retryParked has an operator try again what is parked.
func (b *bed) retryParked() {
	b.Helper()
	_, err := admin.New(b.store).RetryAll(b.Context(), admin.Filter{}, admin.Operator{Name: "op", Reason: "the gap is closed"}, nil, admin.Pace{})
	require.NoError(b, err)
}

package tests_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A message is parked after its delivery, by the queue.
func TestTheQueueParksInTheTrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		d := b.durable(pubsub.Durable{MaxAttempts: 2}, func(*message.Message) error { return errFirst })
		d.deliver(nil)
		b.spans(6)
		b.isParked("attempts")
		var kept []byte
		require.NoError(t, b.db.GetContext(t.Context(), &kept, `SELECT DISTINCT trace FROM millrace_history`))
		assert.Equal(t, b.all("process orders")[0].SpanContext.TraceID().String(), string(kept))
	}))
}

// A message is parked without a delivery, by the janitor.
func TestTheJanitorParksInTheTrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{HeldFor: time.Second, First: 1}.Middleware
		d := b.durable(pubsub.Durable{}, func(*message.Message) error { return nil }, gate)
		d.deliver(message.Metadata{inbox.AggregateField: "account-1", inbox.VersionField: "2"})
		b.spans(4)
		b.isParked(inbox.ReasonHeldTooLong)
		held := b.all("process orders")[0].Events
		require.NotEmpty(t, held)
		assert.Equal(t, "held", held[len(held)-1].Name)
	}))
}

// A message is parked, and tried again before, by a relay.
func TestTheRelayParksInTheTrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		out := rig.NewOutbox(t, b.db.DB, outbox.Config{Standalone: true})
		broker := &rig.Publisher{}
		broker.FailWith(outbox.Permanent(errors.New("no queue takes it")))
		relay, err := outbox.NewRelay(b.db.DB, b.Sender(broker), outbox.RelayConfig{
			MaxAttempts: 2, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond, Poll: 10 * time.Millisecond,
			Observers: []outbox.Observer{b.RelayObserver()},
		})
		require.NoError(t, err)
		require.NoError(t, b.Publisher(out).Publish("orders", message.NewMessage("7", []byte(secret))))
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- relay.Run(ctx) }()
		b.spans(5)
		stop()
		require.NoError(t, <-ran)
		b.isParked("")
		assert.Equal(t, "2", attributes(b.all("parked orders")[0].Attributes)["millrace.attempt"])
		require.Len(t, b.all("attempt orders"), 1)
		require.Len(t, b.all("send orders"), 2)
		for _, s := range append(b.all("attempt orders"), b.all("send orders")...) {
			b.isChild(s, b.all("create orders")[0])
			assert.Equal(t, codes.Error, s.Status.Code)
		}
	}))
}

// isParked asserts that the trace of the only message says that it was parked, and why.
func (b *bed) isParked(reason string) {
	b.Helper()
	parked := b.all("parked orders")
	require.Len(b, parked, 1, b.tree())
	b.isChild(parked[0], b.all("create orders")[0])
	assert.Equal(b, reason, attributes(parked[0].Attributes)["millrace.reason"])
	assert.NotContains(b, b.tree(), secret)
}

// A process had a stored message and gave no answer.
func TestTakingBackIsInTheTrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := message.NewMessage("7", []byte(secret))
		require.NoError(t, b.Publisher(&rig.Publisher{}).Publish("orders", msg))
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "billing"})
		require.NoError(t, queue.Put(t.Context(), "orders", msg))
		b.db.Do(t, `UPDATE millrace_messages SET status = 2, lease_token = 7, due_at = 1`)
		taken := rig.Take(t, queue, 1)
		require.Len(t, taken, 1)

		reclaimed := b.all("reclaimed orders")
		require.Len(t, reclaimed, 1, b.tree())
		b.isChild(reclaimed[0], b.all("create orders")[0])
		assert.Equal(t, "lease lapsed", attributes(reclaimed[0].Attributes)["millrace.reason"])
	}))
}

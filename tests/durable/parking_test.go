package durable_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var parkingBodies = []testdb.Body{
	{Name: "a dead letter", Why: "it goes out, with its id and headers, if and only if the message is parked", Run: func(t *testing.T, db *testdb.DB) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			t.Run([]string{"on failure", "first"}[mode], func(t *testing.T) {
				b := newBed(t, testdb.On(t, db.Dialect))
				letters := rig.NewOutbox(t, b.db.DB, outbox.Config{})
				durable := quick(b.store)
				durable.Mode, durable.MaxAttempts = mode, 2
				durable.OnPark = func(msg *message.Message, reason string) error {
					msg.Metadata.Set("why", reason)
					return letters.Publish("dead", msg)
				}
				s := b.inboxed(durable, func(*message.Message) error { return errBoom })
				msg := newMessage()
				assert.True(t, s.deliver(msg))
				rig.Eventually(b, "it is parked", func() bool { return b.open(inbox.Parked) == 1 })
				assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
				var uuid []byte
				require.NoError(t, b.db.GetContext(t.Context(), &uuid, `SELECT uuid FROM millrace_outbox`))
				assert.Equal(t, msg.UUID, string(uuid))
			})
		}
	}},
	{Name: "a dead letter that cannot be written", Why: "the message is parked all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.OnPark = func(msg *message.Message, _ string) error {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(msg.Context(), tx.Rebind(`INSERT INTO effects (uuid, run) VALUES (?, 1)`), msg.UUID); err != nil {
				return err
			}
			_, err = tx.ExecContext(msg.Context(), `INSERT INTO nowhere VALUES (1)`)
			return err
		}
		s := b.inboxed(durable, func(*message.Message) error { return inbox.Terminal(errBoom) })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it waits for an operator", func() bool { return b.open(inbox.FailedTerminal) == 1 })
		assert.Equal(t, 0, b.effects(msg), "what OnPark did is undone")
	})},
	{Name: "what a handler is told of its delivery", Why: "attempt and arrival are in the context", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		began := time.Now()
		type told struct {
			attempt  int
			received time.Time
		}
		runs := make(chan told, 10)
		s := b.inboxed(quick(b.store), func(msg *message.Message) error {
			n := inbox.Attempt(msg.Context())
			runs <- told{n, inbox.ReceivedAt(msg.Context())}
			if n < 3 {
				return errBoom
			}
			return nil
		})
		assert.True(t, s.deliver(newMessage()))
		for n := range 3 {
			run := <-runs
			assert.Equal(t, n+1, run.attempt)
			assert.WithinRange(t, run.received, began.Add(-time.Second), time.Now().Add(time.Second))
		}
		assert.Equal(t, 0, inbox.Attempt(t.Context()))
		assert.True(t, inbox.ReceivedAt(t.Context()).IsZero())
	})},
	{Name: "a message whose time has not come", Why: "it waits in the table", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		when := time.Now().Add(time.Hour)
		durable.NotBefore = func(msg *message.Message) time.Time {
			if msg.Metadata.Get("later") != "" {
				return when
			}
			return time.Time{}
		}
		s := b.inboxed(durable, effect)
		msg := newMessage()
		msg.Metadata.Set("later", "yes")
		assert.True(t, s.deliver(msg))
		assert.Equal(t, 1, b.open(inbox.Received))
		assert.True(t, s.deliver(newMessage()), "it stops nobody")
		var left int64
		require.NoError(t, b.db.GetContext(t.Context(), &left, `SELECT due_at - received_at FROM millrace_messages`))
		assert.InDelta(t, time.Until(when).Seconds(), float64(left)/1e6, 60)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = received_at`)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
}

type ordered struct{ Amount int }

// What Watermill's CQRS says of an unknown type and of a payload that it cannot decode is
// seen as terminal; what a handler says is not.
func TestClassifyCQRS(t *testing.T) {
	json := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	good, err := json.Marshal(ordered{Amount: 1})
	require.NoError(t, err)
	unknown, err := json.Marshal(struct{ Name string }{"x"})
	require.NoError(t, err)
	undecodable, wrong := good.Copy(), good.Copy()
	undecodable.Payload, wrong.Payload = []byte("{"), []byte(`{"Amount":"many"}`)
	fails := func(context.Context, *ordered) error { return errBoom }
	for name, c := range map[string]struct {
		msg      *message.Message
		terminal bool
	}{
		"unknown": {unknown, true}, "undecodable": {undecodable, true}, "of another shape": {wrong, true}, "failed": {good, false},
	} {
		t.Run(name, func(t *testing.T) {
			classified := make(chan error, 2)
			catch := func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, err := next(msg)
					classified <- pubsub.ClassifyCQRS(err)
					return nil, nil
				}
			}
			router := rig.NewRouter(t)
			router.AddMiddleware(catch)
			single, group := rig.NewFeed(), rig.NewFeed()
			events, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
				GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
				SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return single, nil
				},
				Marshaler: json,
			})
			require.NoError(t, err)
			require.NoError(t, events.AddHandlers(cqrs.NewEventHandler("single", fails)))
			groups, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
				GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
				SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return group, nil
				},
				Marshaler: json,
			})
			require.NoError(t, err)
			require.NoError(t, groups.AddHandlersGroup("group", cqrs.NewGroupEventHandler(fails)))
			go func() { _ = router.Run(context.WithoutCancel(t.Context())) }()
			t.Cleanup(func() { _ = router.Close() })
			for _, s := range []*rig.Feed{single, group} {
				s.Send(t, c.msg.Copy())
				err := <-classified
				require.Error(t, err)
				assert.Equal(t, c.terminal, inbox.IsTerminal(err), err)
			}
		})
	}
	err = cqrs.ProtoMarshaler{}.Unmarshal(undecodable, wrapperspb.String(""))
	require.Error(t, err)
	assert.True(t, inbox.IsTerminal(pubsub.ClassifyCQRS(err)), err)
	assert.NoError(t, pubsub.ClassifyCQRS(nil))
}

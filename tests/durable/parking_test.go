package durable_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var parkingBodies = []testdb.Body{
	{Name: "where the source keeps a message", Why: "it is stored with it, and so is a copy that was dropped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		store := rig.NewStore(b, b.db.DB, inbox.Config{LogDropped: true, Position: func(msg *message.Message) (inbox.Position, error) {
			at := msg.Metadata.Get("at")
			if at == "panics" {
				panic(at)
			}
			return inbox.Position{Partition: at, Offset: 17}, nil
		}})
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			durable := quick(store)
			durable.Mode, durable.MaxAttempts, durable.Consumer = mode, 1, fmt.Sprint("mode", mode)
			s := b.inboxed(durable, func(msg *message.Message) error {
				if msg.Metadata.Get("fine") != "" {
					return nil
				}
				return errBoom
			})
			want := map[string]string{"3": "orders[3]@17", "west": "orders", "panics": "orders"}
			for at := range want {
				msg := newMessage()
				msg.Metadata.Set("at", at)
				assert.True(t, s.deliver(msg))
			}
			fine := newMessage()
			fine.Metadata = message.Metadata{"at": "4", "fine": "yes"}
			rig.Eventually(b, "it is handled, and its copy dropped", func() bool {
				assert.True(t, s.deliver(fine))
				dropped := rig.Story(t, store, fine.UUID).Dropped
				return mode == pubsub.StoreFirst || len(dropped) > 0 && strings.HasSuffix(dropped[0].Reason, ", at orders[4]@17")
			})
			parked := func() (all []admin.Message) {
				return rig.Find(t, store, admin.Filter{Consumer: durable.Consumer, Status: admin.Parked})
			}
			rig.Eventually(b, "all are parked", func() bool { return len(parked()) == len(want) })
			for _, m := range parked() {
				assert.Equal(t, want[m.Metadata.Get("at")], m.Position.String(), mode)
			}
			require.NoError(t, s.router.Close())
		}
		assert.Positive(t, store.Panics())
	})},
	{Name: "a dead letter", Why: "it goes out, with its id and headers, if and only if the message is parked", Run: inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		letters := rig.NewOutbox(t, b.db.DB, outbox.Config{})
		durable := quick(b.store)
		durable.Mode, durable.MaxAttempts = mode, 2
		durable.OnPark = func(msg *message.Message, reason string) error {
			msg.Metadata.Set("why", reason)
			return letters.Publish("dead", msg)
		}
		msg := newMessage()
		b.inboxed(durable, func(*message.Message) error { return errBoom }).parks(msg)
		var uuids []string
		require.NoError(t, b.db.SelectContext(t.Context(), &uuids, `SELECT uuid FROM millrace_outbox`))
		assert.Equal(t, []string{msg.UUID}, uuids)
	})},
	{Name: "a dead letter that cannot be written", Why: "the message is parked all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.OnPark = func(msg *message.Message, _ string) error {
			if err := effect(msg); err != nil {
				return err
			}
			return rig.Exec(msg.Context(), `INSERT INTO nowhere VALUES (1)`)
		}
		s := b.inboxed(durable, func(*message.Message) error { return inbox.Terminal(errBoom) })
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it waits for an operator", func() bool { return b.open(admin.FailedTerminal) == 1 })
		assert.Equal(t, 0, b.effects(msg), "what OnPark did is undone")
	})},
	{Name: "a dead letter that hangs", Why: "the message is parked once the time of the transaction is over", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		durable := quick(b.store)
		durable.Mode, durable.Lease = pubsub.StoreFirst, time.Minute // it handles from the table
		durable.OnPark = func(msg *message.Message, _ string) error { <-msg.Context().Done(); return msg.Context().Err() }
		s := b.inboxed(durable, func(*message.Message) error { return inbox.Terminal(errBoom) })
		assert.True(t, s.deliver(newMessage()))
		rig.Eventually(b, "it waits for an operator", func() bool { return b.open(admin.FailedTerminal) == 1 })
	})},
	{Name: "a dead letter larger than a packet", Why: "MySQL cuts the connection, and the message is parked all the same", Run: inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		letters := rig.NewOutbox(t, b.db.DB, outbox.Config{})
		store, _ := b.filing(newBlobs(t), time.Hour)
		durable := quick(store)
		durable.Mode, durable.MaxAttempts = mode, 1
		calls := make(chan error, 10)
		durable.OnPark = func(msg *message.Message, _ string) error {
			err := letters.Publish("dead", msg)
			calls <- err
			return err
		}
		size, letter := 1<<10, 1
		if b.db.Dialect == "mysql" {
			size, letter = b.db.Count(t, `SELECT @@max_allowed_packet`)+1<<20, 0
		}
		msg := message.NewMessage(watermill.NewUUID(), make([]byte, size))
		assert.True(t, b.inboxed(durable, func(*message.Message) error { return errBoom }).deliver(msg))
		rig.Eventually(b, "it waits for an operator", func() bool { return b.open(admin.Parked) == 1 })
		assert.Equal(t, letter, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
		if err := rig.Within(t, calls, "OnPark"); letter == 0 {
			require.ErrorIs(t, err, outbox.ErrTooLarge)
		}
	})},
	{Name: "a UUID that no column takes", Why: "MySQL can never store it, and the error says so", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		q := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: "long"})
		err := q.Put(t.Context(), "orders", message.NewMessage(strings.Repeat("u", 1<<16), nil))
		if b.db.Dialect != "mysql" {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, outbox.ErrTooLarge)
		assert.ErrorContains(t, err, "can never be stored")
	})},
	{Name: "a dead letter while the database goes away", Why: "the message is parked later, with its letter", Run: inBothModes(func(t *testing.T, b *bed, mode pubsub.Mode) {
		letters := rig.NewOutbox(t, b.db.DB, outbox.Config{})
		durable := quick(b.store)
		durable.Mode, durable.Lease = mode, time.Second
		var once sync.Once
		durable.OnPark = func(msg *message.Message, _ string) error {
			var err error
			once.Do(func() {
				if kill := map[string]string{"postgres": `SELECT pg_terminate_backend(pg_backend_pid())`, "mysql": `KILL CONNECTION_ID()`}[b.db.Dialect]; kill != "" {
					err = errors.Join(errBoom, rig.Exec(msg.Context(), kill))
				}
			})
			if err != nil {
				return err
			}
			return letters.Publish("dead", msg)
		}
		msg := newMessage()
		s := b.inboxed(durable, func(*message.Message) error { return inbox.Terminal(errBoom) })
		rig.Eventually(b, "it waits for an operator", func() bool { return s.deliver(msg) && b.open(admin.FailedTerminal) == 1 })
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outbox WHERE uuid = ?`, msg.UUID))
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
		assert.Equal(t, 1, b.open(admin.Received))
		assert.True(t, s.deliver(newMessage()), "it stops nobody")
		left := b.count(`SELECT due_at - received_at FROM millrace_messages`)
		assert.InDelta(t, time.Until(when).Seconds(), float64(left)/1e6, 60)
		b.db.Do(t, `UPDATE millrace_messages SET due_at = received_at`)
		rig.Eventually(b, "it is handled", func() bool { return b.effects(msg) == 1 && b.rows() == 0 })
	})},
}

type ordered struct{ Amount int }

// What Watermill's CQRS says of an unknown type, and of a payload that it cannot decode, is terminal. What a handler
// says of anything else that it decodes is not.
func TestWhatCQRSCannotHandle(t *testing.T) {
	t.Parallel()
	marshal := func(m cqrs.CommandEventMarshaler, event any, payload string) *message.Message {
		msg, err := m.Marshal(event)
		require.NoError(t, err)
		if payload != "" {
			msg.Payload = []byte(payload)
		}
		return msg
	}
	short, long := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}, cqrs.JSONMarshaler{}
	proto := cqrs.ProtoMarshaler{}
	decodes := func(answer string, into any) func() error {
		return func() error { return json.Unmarshal([]byte(answer), into) }
	}
	none := func() error { return errBoom }
	jsonEvent := func(handle func() error) cqrs.EventHandler {
		return cqrs.NewEventHandler("orders", func(context.Context, *ordered) error { return handle() })
	}
	protoEvent := func(handle func() error) cqrs.EventHandler {
		return cqrs.NewEventHandler("orders", func(context.Context, *wrapperspb.StringValue) error { return handle() })
	}
	text := wrapperspb.String("x")
	for name, c := range map[string]struct {
		marshaler cqrs.CommandEventMarshaler
		msg       *message.Message
		event     func(handle func() error) cqrs.EventHandler
		handle    func() error
		reason    string // nothing: it is tried again
	}{
		"an unknown type":                  {short, marshal(short, struct{ Name string }{"x"}, ""), jsonEvent, none, inbox.ReasonUnknownType},
		"no JSON":                          {long, marshal(long, ordered{}, "{"), jsonEvent, none, inbox.ReasonTerminal},
		"JSON of another shape":            {short, marshal(short, ordered{}, `["x"]`), jsonEvent, none, inbox.ReasonTerminal},
		"a field of another type":          {long, marshal(long, ordered{}, `{"Amount":"many"}`), jsonEvent, none, inbox.ReasonTerminal},
		"no Protobuf":                      {proto, marshal(proto, text, "{"), protoEvent, none, inbox.ReasonTerminal},
		"a handler that fails":             {short, marshal(short, ordered{}, ""), jsonEvent, none, ""},
		"an answer that is cut off":        {long, marshal(long, ordered{}, ""), jsonEvent, decodes(`{"a":`, new(any)), ""},
		"an answer of another shape":       {short, marshal(short, ordered{}, ""), jsonEvent, decodes(`["x"]`, new(ordered)), ""},
		"an answer with another field":     {short, marshal(short, ordered{}, ""), jsonEvent, decodes(`{"Amount":"many"}`, new(ordered)), ""},
		"an answer with a number too many": {short, marshal(short, ordered{Amount: 2}, ""), jsonEvent, decodes(`{"Amount":2.5}`, new(ordered)), ""},
		"no answer, and an empty payload":  {proto, marshal(proto, wrapperspb.String(""), ""), protoEvent, decodes("", new(any)), ""},
		"an answer that is no Protobuf":    {proto, marshal(proto, text, ""), protoEvent, func() error { return gproto.Unmarshal([]byte("{"), text) }, ""},
		"no Protobuf in a handler of JSON": {short, marshal(short, ordered{}, ""), jsonEvent, func() error { return gproto.Unmarshal([]byte("{"), text) }, ""},
	} {
		for processor, add := range map[string]func(*testing.T, *message.Router, message.Subscriber, cqrs.CommandEventMarshaler, cqrs.EventHandler){
			"single": singleProcessor, "group": groupProcessor,
		} {
			t.Run(name+"/"+processor, func(t *testing.T) {
				t.Parallel()
				b := newBed(t, testdb.On(t, "sqlite"))
				events := b.told()
				durable := quick(b.store)
				durable.MinBackoff, durable.MaxBackoff = time.Hour, time.Hour
				feed := rig.NewFeed()
				sub, err := durable.Decorate(feed)
				require.NoError(t, err)
				router := rig.NewRouter(t)
				millrace.Inbox{Store: durable.Store, Consumer: consumer}.AddTo(router)
				add(t, router, sub, c.marshaler, c.event(c.handle))
				rig.Run(t, router)
				msg := c.msg.Copy()
				feed.Send(t, msg)
				require.True(t, rig.Answer(t, msg))
				if c.reason == "" {
					assert.Equal(t, 1, b.open(admin.FailedRetryable))
					return
				}
				assert.Equal(t, 1, b.open(admin.FailedTerminal))
				assert.Equal(t, c.reason, events.Last("parked").Reason)
			})
		}
	}
}

func singleProcessor(
	t *testing.T, router *message.Router, sub message.Subscriber, marshaler cqrs.CommandEventMarshaler, handler cqrs.EventHandler,
) {
	p, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
		SubscriberConstructor:  func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) { return sub, nil },
		Marshaler:              marshaler,
	})
	require.NoError(t, err)
	require.NoError(t, p.AddHandlers(handler))
}

func groupProcessor(
	t *testing.T, router *message.Router, sub message.Subscriber, marshaler cqrs.CommandEventMarshaler, handler cqrs.EventHandler,
) {
	p, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
		SubscriberConstructor:  func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) { return sub, nil },
		Marshaler:              marshaler,
	})
	require.NoError(t, err)
	require.NoError(t, p.AddHandlersGroup("group", handler))
}

package bench_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/testdb"
)

func noop(*message.Message) error { return nil }

// BenchmarkStraight is D1 in memory: StoreOnFailure where nothing fails, beside the bare
// subscriber.
func BenchmarkStraight(b *testing.B) {
	db := database(b)
	store := newStore(b, db)
	durable := func(router *message.Router) {
		router.AddSubscriberDecorators(pubsub.Durable{Store: store, Consumer: "billing"}.Decorate)
	}
	ways := []struct {
		name string
		*service
	}{
		{"bare", serve(b, noop, func(*message.Router) {})},
		{"durable", serve(b, noop, durable)},
		{"inbox", withInbox(b, db)},
		{"durable and inbox", serve(b, transfer, func(router *message.Router) {
			router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
			durable(router)
		})},
	}
	rates := series{}
	for range pick(3, 1) {
		for _, way := range ways {
			run(b, db, `TRUNCATE millrace_claims`)
			settleDown(b, db)
			rates.add(way.name, way.flood(b, phase()))
		}
	}
	per := func(way string) float64 { return median(rates[way]) }
	atLeast("D1/inbox", 0.95).judge(b, rates.over("durable and inbox", "inbox"),
		"with Inbox and one UPDATE %.0f/s, without Durable %.0f/s", per("durable and inbox"), per("inbox"))
	tell(fmt.Sprintf("D1/gochannel ratio=%.2f no goal (a handler that does nothing, behind a gochannel: %.0f/s, without Durable %.0f/s: %.1f µs a message)",
		median(rates.over("durable", "bare")), per("durable"), per("bare"), 1e6/per("durable")-1e6/per("bare")))
}

// BenchmarkDurableRabbitMQ is D1 and D2: a handler that does nothing empties a queue of RabbitMQ, without
// Durable and in both of its modes.
func BenchmarkDurableRabbitMQ(b *testing.B) {
	r, db := newRabbit(b, "classic"), database(b)
	n := pick(10_000, 300)
	rates := series{}
	for range pick(3, 1) {
		for _, way := range []string{"bare", "StoreOnFailure", "StoreFirst"} {
			run(b, db, `TRUNCATE millrace_claims, millrace_messages`, `CHECKPOINT`)
			r.purge(b)
			r.bare(b, n)
			sub, err := rabbitmq.NewSubscriber(r.config(), rabbitmq.SubscriberConfig{InFlight: inFlight})
			require.NoError(b, err)
			var source message.Subscriber = sub
			durable := pubsub.Durable{Store: newStore(b, db), Consumer: "billing", Concurrency: inFlight}
			if way == "StoreFirst" {
				durable.Mode = pubsub.StoreFirst
			}
			if way != "bare" {
				source, err = durable.Decorate(source)
				require.NoError(b, err)
			}
			rates.add(way, emptied(b, db, n, source, r.queue, noop))
		}
	}
	per := func(way string) float64 { return median(rates[way]) }
	atLeast("D1/rabbitmq", 0.95).judge(b, rates.over("StoreOnFailure", "bare"),
		"a handler that does nothing: StoreOnFailure %.0f/s, without Durable %.0f/s", per("StoreOnFailure"), per("bare"))
	ratios := rates.over("StoreFirst", "bare")
	tell(fmt.Sprintf("D2 ratio=%.2f no goal (from RabbitMQ through StoreFirst to a handler that does nothing: %.0f/s; turns %s)",
		median(ratios), per("StoreFirst"), list(ratios)))
}

// BenchmarkClaims is D3: stored messages, each with a transaction of its own, that are
// taken together, against taken one by one.
func BenchmarkClaims(b *testing.B) {
	db := database(b)
	n := pick(1_000, 50)
	rates := series{}
	for range pick(3, 1) {
		for way, prefetch := range map[string]int{"together": 0, "one by one": 1} {
			store := newStore(b, db)
			storeMessages(b, db, store, n)
			source, err := pubsub.Durable{
				Store: store, Consumer: "billing", Mode: pubsub.StoreFirst, Concurrency: inFlight, Prefetch: prefetch,
			}.Decorate(nothing{})
			require.NoError(b, err)
			rates.add(way, emptied(b, db, n, source, topic, transfer, millrace.Inbox{Store: store}.Middleware))
		}
	}
	atLeast("D3", 2).judge(b, rates.over("together", "one by one"),
		"taken together %.0f/s, one by one %.0f/s", median(rates["together"]), median(rates["one by one"]))
}

// emptied runs a router until n messages were handled and none is stored any more.
func emptied(
	b *testing.B, db *testdb.DB, n int, sub message.Subscriber, topic string, handler message.NoPublishHandlerFunc,
	middlewares ...message.HandlerMiddleware,
) (perSecond float64) {
	b.Helper()
	errs := &failures{}
	router, err := message.NewRouter(message.RouterConfig{}, errs)
	require.NoError(b, err)
	var handled atomic.Int64
	done := make(chan struct{})
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err == nil && handled.Add(1) == int64(n) {
				close(done)
			}
			return produced, err
		}
	})
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("billing", topic, sub, handler)
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- router.Run(context.WithoutCancel(b.Context())) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.NoError(b, errs.first())
		require.FailNow(b, "not every message was handled within a minute")
	}
	awaitNone(b, db, `SELECT EXISTS (SELECT 1 FROM millrace_messages)`)
	took := time.Since(began)
	require.NoError(b, errors.Join(router.Close(), <-ended, errs.first()))
	return float64(n) / took.Seconds()
}

// awaitNone waits until query says that there are no rows.
func awaitNone(b *testing.B, db *testdb.DB, query string) {
	b.Helper()
	for some := true; some; {
		require.NoError(b, db.GetContext(b.Context(), &some, query))
	}
}

// storeMessages fills the table with n messages as StoreFirst stores them.
func storeMessages(b *testing.B, db *testdb.DB, store *inbox.Store, n int) {
	b.Helper()
	queue, err := store.Queue(inbox.QueueConfig{Consumer: "billing"})
	require.NoError(b, err)
	run(b, db, `TRUNCATE millrace_claims, millrace_messages`)
	require.NoError(b, queue.Put(b.Context(), topic, message.NewMessage(watermill.NewUUID(), payload)))
	db.Do(b, `
		INSERT INTO millrace_messages (consumer, message_id, status, topic, event_type, event_version, uuid, metadata, payload,
			payload_hash, reason, received_at, due_at)
		SELECT m.consumer, '\x01'::BYTEA || uuid_send(u.uuid), m.status, m.topic, m.event_type, m.event_version,
			u.uuid::TEXT::BYTEA, m.metadata, m.payload, m.payload_hash, m.reason, m.received_at, m.due_at
		FROM millrace_messages m, (SELECT gen_random_uuid() AS uuid FROM generate_series(2, $1)) u`, n)
	run(b, db, `VACUUM ANALYZE millrace_messages`, `CHECKPOINT`)
}

// nothing is a subscriber whose source is silent.
type nothing struct{}

// Subscribe delivers nothing until ctx ends.
func (nothing) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

// Close does nothing.
func (nothing) Close() error { return nil }

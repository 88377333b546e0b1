package deadletter_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// theHandlersFault reports whether err tells something of the message: what the database, the wiring or the
// end of the service is to blame for, or what waits for something else, belongs back to the broker, and not
// into a poison queue.
func theHandlersFault(err error) bool {
	for _, other := range []error{
		inbox.ErrUnavailable, inbox.ErrReadOnly, inbox.ErrNotMigrated, inbox.ErrClosed, inbox.ErrNoPlugin, inbox.ErrNoQueue,
		inbox.ErrKeyChanged, inbox.ErrInProgress, inbox.ErrInDoubt, inbox.ErrLost, inbox.ErrLeaseLost,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return !errors.As(err, new(*inbox.GapError))
}

// whereItCameFrom sends a letter back to its topic, for a few times, and then to where nothing
// takes it from by itself.
func whereItCameFrom(p requeuer.GeneratePublishTopicParams) (string, error) {
	retries, _ := strconv.Atoi(p.Message.Metadata.Get(requeuer.RetriesKey)) // 0 where it is the first time
	topic := p.Message.Metadata.Get(middleware.PoisonedTopicKey)
	if topic == "" || retries >= 3 {
		return "orders.given-up", nil
	}
	return topic, nil
}

// lane is a broker with the topics of the test.
type lane struct {
	publisher  message.Publisher
	subscriber func(group string) message.Subscriber
}

const given = "orders.given-up"

// lanes runs body on each broker, with the databases that fit.
func lanes(t *testing.T, body func(*bed, lane)) {
	t.Helper()
	t.Run("gochannel", func(t *testing.T) {
		each(t, func(b *bed) {
			channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			b.Cleanup(func() { assert.NoError(b, channel.Close()) })
			body(b, lane{channel, func(string) message.Subscriber { return channel }})
		})
	})
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run("watermill-sql/"+dialect, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, dialect))
			body(b, b.sqlLane())
		})
	}
	t.Run("rabbitmq", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, testdb.On(t, "sqlite"))
		body(b, b.rabbitLane())
	})
}

func (b *bed) sqlLane() lane {
	b.Helper()
	publisher, err := watermillsql.NewPublisher(b.db.DB, watermillsql.Config{})
	require.NoError(b, err)
	require.NoError(b, publisher.Initialize(b.Context(), "orders", "poison", given))
	return lane{publisher, func(group string) message.Subscriber {
		s, err := watermillsql.NewSubscriber(b.db.Open(b).DB, watermillsql.SubscriberConfig{
			ConsumerGroup: group,
			PollInterval:  10 * time.Millisecond, ResendInterval: 5 * time.Millisecond, RetryInterval: 10 * time.Millisecond,
		})
		require.NoError(b, err)
		return s
	}}
}

// rabbitLane has queues whose names begin with something of their own.
func (b *bed) rabbitLane() lane {
	b.Helper()
	r := newRabbit(b, rabbitmq.Queues{})
	own := func(topic string) string { return r.topic + "_" + topic }
	broker := rabbitmq.NewQueueConfig(r.url, rabbitmq.Queues{})
	broker.Queue.GenerateName, broker.Publish.GenerateRoutingKey = own, own
	b.Cleanup(func() { r.remove(own("orders"), own("poison"), own(given)) })
	require.NoError(b, rabbitmq.Declare(broker, "orders", "poison", given))
	return lane{r.newPublisher(broker), func(string) message.Subscriber { return r.newSubscriber(broker) }}
}

// bill starts the service, with a poison queue around its inbox.
func (b *bed) bill(l lane, around ...message.HandlerMiddleware) (stop func()) {
	b.Helper()
	return b.billFrom(l, b.inbox(), l.subscriber("billing"), around...)
}

// billFrom is bill with an inbox and a subscriber.
func (b *bed) billFrom(l lane, in millrace.Inbox, from message.Subscriber, around ...message.HandlerMiddleware) (stop func()) {
	b.Helper()
	poison, err := middleware.PoisonQueueWithFilter(l.publisher, "poison", theHandlersFault)
	require.NoError(b, err)
	return b.start(in.Store, func(router *message.Router) {
		router.AddMiddleware(poison)
		router.AddMiddleware(append(around, in.Middleware)...)
		router.AddConsumerHandler("billing", "orders", from, b.handle)
	})
}

// requeue starts Watermill's requeuer, on a router without the inbox.
func (b *bed) requeue(l lane, delay time.Duration) {
	b.Helper()
	b.start(nil, func(router *message.Router) {
		_, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber:           l.subscriber("requeuer"),
			SubscribeTopic:       "poison",
			Publisher:            pubsub.AsReplay(l.publisher, "poisoned orders"),
			GeneratePublishTopic: whereItCameFrom,
			Delay:                delay,
			Router:               router,
		}, watermill.NopLogger{})
		require.NoError(b, err)
	})
}

// Bad messages, and one that was handled but whose ack was lost, go to the poison queue and are
// brought back to the handler, which is fixed now.
func TestPoisonQueueAndRequeuer(t *testing.T) {
	t.Parallel()
	lanes(t, func(b *bed, l lane) {
		messages := newMessages(10)
		bad, good := of("bad", messages), of("good", messages)
		b.bill(l, losesAck(good[0]))
		require.NoError(b, l.publisher.Publish("orders", messages...))
		b.endsIn(once(good...))
		rig.Eventually(b, "the bad ones failed", func() bool { return b.events.Count("failed") >= len(bad) })
		b.fixed.Store(true)
		b.requeue(l, 0)
		b.endsIn(once(messages...))
		rig.Eventually(b, "the copy of what was handled is dropped", func() bool { return b.events.Count("duplicate") >= 1 })
		rig.Eventually(b, "all are told", func() bool { return b.events.Count("completed") == len(messages) })
		for _, msg := range bad {
			b.keeps(msg)
			given := b.given(msg)
			assert.Equal(b, "poisoned orders", given[inbox.ReplayField])
			assert.Equal(b, "1", given[inbox.ReplayAttemptField])
			assert.Equal(b, "1", given[requeuer.RetriesKey])
			assert.NotContains(b, given, middleware.ReasonForPoisonedKey)
		}
		b.nothingOpen()
	})
}

// Bad messages that come through the inbox's table leave nothing in it: their letters are handled when they come back.
func TestPoisonQueueAroundStoredMessages(t *testing.T) {
	t.Parallel()
	for name, durable := range map[string]pubsub.Durable{
		"all are stored first":      {Mode: pubsub.StoreFirst},
		"all were delivered before": {Redelivered: func(*message.Message) bool { return true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lanes(t, func(b *bed, l lane) {
				messages := newMessages(10)
				bad, good := of("bad", messages), of("good", messages)
				in, durable := b.inbox(), durable
				durable.Store, durable.Consumer, durable.Poll = in.Store, in.Consumer, 50*time.Millisecond
				from, err := durable.Decorate(l.subscriber("billing"))
				require.NoError(b, err)
				b.billFrom(l, in, from)
				require.NoError(b, l.publisher.Publish("orders", messages...))
				b.endsIn(once(good...))
				rig.Eventually(b, "the bad ones failed", func() bool { return b.events.Count("failed") >= len(bad) })
				b.fixed.Store(true)
				b.requeue(l, 0)
				b.endsIn(once(messages...))
				rig.Eventually(b, "nothing is stored any more", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
				b.nothingOpen()
				require.Equal(b, once(messages...), b.ledger())
				for _, msg := range bad {
					b.keeps(msg)
				}
			})
		})
	}
}

// While the handler is broken, a message goes round three times, with a pause, and ends where
// somebody looks. From there it is sent back by hand.
func TestPoisonQueueGoesRoundOnlySoOften(t *testing.T) {
	t.Parallel()
	lanes(t, func(b *bed, l lane) {
		messages := newMessages(4)
		bad := of("bad", messages)
		b.bill(l)
		b.requeue(l, 10*time.Millisecond)
		givenUp, err := l.subscriber("operator").Subscribe(b.Context(), given)
		require.NoError(b, err)
		require.NoError(b, l.publisher.Publish("orders", messages...))
		var letters []*message.Message
		for range bad {
			letter := b.receive(givenUp)
			letters = append(letters, letter.Copy())
			letter.Ack()
		}
		require.Equal(b, 4*len(bad), b.events.Count("failed"))
		b.fixed.Store(true)
		back := pubsub.AsReplay(l.publisher, "the fix of May")
		for _, letter := range letters {
			require.NoError(b, back.Publish("orders", letter))
		}
		b.endsIn(once(messages...))
		for _, msg := range bad {
			b.keeps(msg)
			assert.Equal(b, "the fix of May", b.given(msg)[inbox.ReplayField])
			assert.Equal(b, "5", b.given(msg)[inbox.ReplayAttemptField])
		}
	})
}

// A requeuer on the service's own router is behind its inbox: it takes a message that fails a
// second time for the one it has moved already, and drops it. That is what not to do.
func TestRequeuerBehindTheInboxLosesTheSecondRound(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	poison, err := middleware.PoisonQueue(channel, "poison")
	require.NoError(t, err)
	in := millrace.Inbox{Store: b.process()}
	b.start(in.Store, func(router *message.Router) {
		router.AddMiddleware(poison, in.Middleware)
		router.AddConsumerHandler("billing", "orders", channel, b.handle)
		_, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber: channel, SubscribeTopic: "poison", Publisher: channel, GeneratePublishTopic: whereItCameFrom, Router: router,
		}, watermill.NopLogger{})
		require.NoError(t, err)
	})
	require.NoError(t, channel.Publish("orders", of("bad", newMessages(2))...))
	rig.Eventually(b, "the second round is dropped", func() bool { return b.events.Count("duplicate") == 1 })
	require.Equal(t, "requeuer", b.events.Last("duplicate").Consumer)
	require.Equal(t, 2, b.events.Count("failed"))
}

// receive waits for the next message.
func (b *bed) receive(from <-chan *message.Message) *message.Message {
	b.Helper()
	msg := rig.Within(b, from, "a message")
	require.NotNil(b, msg, "the subscription has ended")
	return msg
}

func TestTheHandlersFault(t *testing.T) {
	t.Parallel()
	for _, not := range []error{
		inbox.ErrUnavailable, inbox.ErrNoPlugin, inbox.ErrNoQueue, inbox.ErrInDoubt, inbox.ErrLeaseLost, &inbox.GapError{Aggregate: "a", Version: 3},
	} {
		assert.False(t, theHandlersFault(&inbox.DeliveryError{Err: not}), not)
	}
	for _, fault := range []error{errBroken, inbox.Terminal(errBroken), inbox.ErrTxNotUsed, inbox.ErrNoVersion} {
		assert.True(t, theHandlersFault(&inbox.DeliveryError{Err: fault}), fault)
	}
}

// A run loses its connection while the database is there, and the next one does not: nothing of it is poison.
func TestPoisonQueueLeavesWhatLostItsConnection(t *testing.T) {
	t.Parallel()
	each(t, func(b *bed) {
		kill := map[string]string{"postgres": `SELECT pg_terminate_backend(pg_backend_pid())`, "mysql": `KILL CONNECTION_ID()`}[b.db.Dialect]
		if kill == "" {
			return // SQLite has no connection to lose
		}
		channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		b.Cleanup(func() { assert.NoError(b, channel.Close()) })
		var poisoned atomic.Int32
		filter := func(err error) bool {
			fault := theHandlersFault(err)
			if fault {
				b.Log("poison:", err)
				poisoned.Add(1)
			}
			return fault
		}
		poison, err := middleware.PoisonQueueWithFilter(channel, "poison", filter)
		require.NoError(b, err)
		var runs atomic.Int32
		in := b.inbox()
		b.start(in.Store, func(router *message.Router) {
			router.AddMiddleware(poison, in.Middleware)
			router.AddConsumerHandler("billing", "orders", channel, func(msg *message.Message) error {
				if runs.Add(1) == 1 {
					return rig.Exec(msg.Context(), kill)
				}
				return b.handle(msg)
			})
		})
		good := of("good", newMessages(1))
		require.NoError(b, channel.Publish("orders", good...))
		rig.Eventually(b, "the message is handled, or poison", func() bool { return len(b.ledger()) == 1 || poisoned.Load() > 0 })
		require.Zero(b, poisoned.Load())
		require.Equal(b, inbox.ReasonConnection, b.events.Last("failed").Reason)
	})
}

// While the database is away everything fails, and nothing of it is poison.
func TestPoisonQueueLeavesWhatTheDatabaseIsToBlameFor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	wire, _ := servers.Before(t, b.db.DSN)
	store := rig.NewStore(t, b.db.Open(t, testdb.Via(wire.Addr())).DB, inbox.Config{Observers: []inbox.Observer{b.events}})
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	letters, err := channel.Subscribe(t.Context(), "poison")
	require.NoError(t, err)
	poison, err := middleware.PoisonQueueWithFilter(channel, "poison", theHandlersFault)
	require.NoError(t, err)
	in := millrace.Inbox{Store: store}
	b.start(store, func(router *message.Router) {
		router.AddMiddleware(poison, in.Middleware)
		router.AddConsumerHandler("billing", "orders", channel, b.handle)
	})
	messages := newMessages(6)
	wire.Cut()
	require.NoError(t, channel.Publish("orders", messages...))
	rig.Eventually(b, "the outage is met", func() bool { return b.events.Count("outage") >= len(messages) })
	wire.Mend()
	b.endsIn(once(of("good", messages)...))
	poisoned := map[string]bool{}
	for range of("bad", messages) {
		letter := b.receive(letters)
		poisoned[letter.UUID] = true
		letter.Ack()
	}
	for _, msg := range of("bad", messages) {
		require.True(t, poisoned[msg.UUID], "the handler failed for it")
	}
	select {
	case letter := <-letters:
		require.Fail(t, "this one was not to blame", "%s: %v", letter.UUID, letter.Metadata)
	default:
	}
}

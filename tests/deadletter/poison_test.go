package deadletter_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
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

// theHandlersFault reports whether err tells something of the message: what the database or the
// end of the service is to blame for belongs back to the broker, and not into a poison queue.
func theHandlersFault(err error) bool {
	for _, other := range []error{
		inbox.ErrInProgress, inbox.ErrUnavailable, inbox.ErrReadOnly, inbox.ErrNotMigrated, inbox.ErrClosed, inbox.ErrLost,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
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
	select {
	case msg, open := <-from:
		require.True(b, open, "the subscription has ended")
		return msg
	case <-time.After(rig.Patience):
		require.Fail(b, "no message arrives")
		return nil
	}
}

// While the database is away everything fails, and nothing of it is poison.
func TestPoisonQueueLeavesWhatTheDatabaseIsToBlameFor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	dsn, err := url.Parse(b.db.DSN)
	require.NoError(t, err)
	wire := servers.Proxy(t, dsn.Host)
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

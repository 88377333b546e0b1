package rabbitmq_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// graveyard is a topic with a group of consumers, and their dead letters.
type graveyard struct {
	*admin
	topic, queue, dead string
	broker             amqp.Config
}

func newGraveyard(t *testing.T, q rabbitmq.Queues) *graveyard {
	t.Helper()
	a := newAdmin(t, uri(t))
	q.DeadLetters = true
	g := &graveyard{admin: a, topic: a.topic(), broker: rabbitmq.NewPubSubConfig(uri(t), "group", q)}
	g.queue = g.topic + "_group"
	g.dead = g.queue + rabbitmq.DeadLetterSuffix
	require.NoError(t, rabbitmq.Declare(g.broker, g.topic))
	return g
}

// bury publishes messages and rejects them.
func (g *graveyard) bury(messages ...*message.Message) {
	g.t.Helper()
	require.NoError(g.t, publisher(g.t, g.broker, rabbitmq.PublisherConfig{}).Publish(g.topic, messages...))
	g.reject(len(messages))
}

// reject rejects n messages for good.
func (g *graveyard) reject(n int) {
	g.t.Helper()
	before, ch := g.ready(g.dead), g.channel()
	for range n {
		d, found, err := ch.Get(g.queue, false)
		require.NoError(g.t, err)
		require.True(g.t, found)
		require.NoError(g.t, d.Nack(false, false))
	}
	rig.Eventually(g.t, "the letters are there", func() bool { return g.ready(g.dead) == before+n })
	require.NoError(g.t, ch.Close())
}

func (g *graveyard) requeue(config rabbitmq.RequeueConfig) rabbitmq.Requeued {
	g.t.Helper()
	done, err := rabbitmq.Requeue(g.t.Context(), g.broker, g.dead, config)
	require.NoError(g.t, err)
	return done
}

func bodies(deliveries []amqp091.Delivery) (all []string) {
	for _, d := range deliveries {
		all = append(all, string(d.Body))
	}
	return all
}

func TestRequeueKeepsWhatAMessageIs(t *testing.T) {
	eachQueueType(t, func(t *testing.T, q rabbitmq.Queues) {
		g := newGraveyard(t, q)
		at := time.Now().Truncate(time.Second)
		headers := amqp091.Table{
			"_watermill_message_uuid": "an-id", "correlation_id": "c", "int64": int64(7), "byte": byte(1), "float": 1.5, "true": true,
			"table": amqp091.Table{"list": []any{int32(1), "two", amqp091.Table{"three": nil}}}, "bytes": []byte{0xff},
			"time": at, "decimal": amqp091.Decimal{Scale: 2, Value: 12345},
		}
		sent := amqp091.Publishing{
			Headers: headers, Body: []byte{0, 0xff}, MessageId: "amqp-id", Timestamp: at, DeliveryMode: amqp091.Persistent,
			ContentType: "application/json", ContentEncoding: "identity", CorrelationId: "cc", ReplyTo: "r", Type: "placed",
			AppId: "app", Priority: 3, UserId: "guest",
		}
		require.NoError(t, g.channel().PublishWithContext(t.Context(), g.topic, "", true, false, sent))
		for attempt := range 2 {
			rig.Eventually(t, "it is there", func() bool { return g.ready(g.queue) == 1 })
			g.reject(1)
			require.Equal(t, rabbitmq.Requeued{Sent: 1}, g.requeue(rabbitmq.RequeueConfig{Replay: fmt.Sprint("of day ", attempt)}))
			require.Equal(t, 0, g.ready(g.dead))
			ch := g.channel()
			got, found, err := ch.Get(g.queue, false)
			require.NoError(t, err)
			require.True(t, found)
			require.NoError(t, got.Nack(false, true))
			require.NoError(t, ch.Close())
			for name, value := range headers {
				require.Equal(t, value, got.Headers[name], name)
			}
			require.Equal(t, fmt.Sprint("of day ", attempt), got.Headers[inbox.ReplayField])
			require.Equal(t, fmt.Sprint(attempt+1), got.Headers[inbox.ReplayAttemptField])
			require.Equal(t, g.queue, deathsOf(t, got)[0]["queue"])
			require.NotContains(t, got.Headers, "x-death")
			require.Contains(t, []any{nil, int64(0)}, got.Headers["x-delivery-count"], "a quorum queue's own")
			require.Equal(t, sent, amqp091.Publishing{
				Headers: headers, Body: got.Body, MessageId: got.MessageId, Timestamp: got.Timestamp, DeliveryMode: got.DeliveryMode,
				ContentType: got.ContentType, ContentEncoding: got.ContentEncoding, CorrelationId: got.CorrelationId,
				ReplyTo: got.ReplyTo, Type: got.Type, AppId: got.AppId, Priority: got.Priority, UserId: "guest",
			})
			require.Empty(t, got.UserId, "another user could not send it")
		}
	})
}

// deathsOf reads the header that Requeue made of x-death.
func deathsOf(t *testing.T, d amqp091.Delivery) (deaths []map[string]any) {
	t.Helper()
	kept, is := d.Headers[rabbitmq.DeathsField].(string)
	require.True(t, is, "%T", d.Headers[rabbitmq.DeathsField])
	require.NoError(t, json.Unmarshal([]byte(kept), &deaths))
	return deaths
}

// TestWatermillReadsWhatRequeueSends: the queue's consumer may be one of watermill-amqp, to which RabbitMQ would deliver
// a message with a header that is no text for ever. An earlier release has sent such ones.
func TestWatermillReadsWhatRequeueSends(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	read := func(queue string) {
		t.Helper()
		require.Equal(t, rabbitmq.Requeued{Sent: 1}, g.requeue(rabbitmq.RequeueConfig{}))
		got := g.drain(g.queue, 1)[0]
		msg, err := amqp.DefaultMarshaler{}.Unmarshal(got)
		require.NoError(t, err)
		require.Equal(t, "an-id", msg.UUID)
		require.Equal(t, queue, deathsOf(t, got)[0]["queue"])
	}
	headers := amqp091.Table{"_watermill_message_uuid": "an-id"}
	send := func(queue string) {
		t.Helper()
		require.NoError(t, g.channel().PublishWithContext(t.Context(), "", queue, true, false, amqp091.Publishing{Headers: headers}))
		rig.Eventually(t, "it is there", func() bool { return g.ready(queue) == 1 })
	}
	send(g.queue)
	g.reject(1)
	read(g.queue)

	headers["topic_poisoned"] = g.topic
	headers[rabbitmq.DeathsField] = []any{amqp091.Table{"queue": "elsewhere", "count": int64(1)}}
	send(g.dead)
	read("elsewhere")
}

func TestRequeueLeavesOutWhatTellsOfDeliveries(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	copied := g.admin.queue(nil)
	for _, to := range []string{g.queue, g.dead} {
		require.NoError(t, g.channel().PublishWithContext(t.Context(), "", to, true, false, amqp091.Publishing{
			MessageId: "an-id",
			Headers: amqp091.Table{
				"x-delivery-count": int64(3), "x-acquired-count": int64(4), "CC": []any{copied}, "topic_poisoned": g.topic,
				"x-last-death-queue": "elsewhere", "x-custom": "kept",
			},
		}))
	}
	g.reject(1)
	require.Equal(t, 2, g.ready(copied))
	require.Equal(t, rabbitmq.Requeued{Sent: 2}, g.requeue(rabbitmq.RequeueConfig{}))
	for _, d := range g.drain(g.queue, 2) {
		for _, name := range []string{"x-delivery-count", "x-acquired-count", "CC", "topic_poisoned", "x-last-death-queue", "x-first-death-queue"} {
			require.NotContains(t, d.Headers, name)
		}
		require.Equal(t, "kept", d.Headers["x-custom"])
	}
	require.Equal(t, 2, g.ready(copied))
}

func TestRequeueGoesToTheOneQueueInWhichALetterDied(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	other := rabbitmq.NewPubSubConfig(uri(t), "other", rabbitmq.Queues{})
	other.Queue.AutoDelete = true
	out, err := subscriber(t, other, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), g.topic)
	require.NoError(t, err)
	g.bury(newMessages(1)...)
	receive(t, out).Ack()
	g.requeue(rabbitmq.RequeueConfig{})
	require.Equal(t, 1, g.ready(g.queue))
	hearsNothing(t, out)
}

func TestRequeueIsInOrderAndLooksAtEachLetterOnce(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t, rabbitmq.Queues{})
	messages := newMessages(250)
	g.bury(messages...)
	odd := func(msg *message.Message) bool { return strings.HasSuffix(string(msg.Payload), "1") }
	require.Equal(t, rabbitmq.Requeued{Sent: 25, Unwanted: 225}, g.requeue(rabbitmq.RequeueConfig{Wanted: odd, DryRun: true}))
	require.Equal(t, 250, g.ready(g.dead))
	require.Equal(t, rabbitmq.Requeued{Sent: 25, Unwanted: 225}, g.requeue(rabbitmq.RequeueConfig{Wanted: odd}))
	require.Equal(t, rabbitmq.Requeued{Unwanted: 7}, g.requeue(rabbitmq.RequeueConfig{Wanted: odd, Limit: 7}))
	began := time.Now()
	require.Equal(t, rabbitmq.Requeued{Sent: 21}, g.requeue(rabbitmq.RequeueConfig{Limit: 21, PerSecond: 100}))
	require.Greater(t, time.Since(began), 200*time.Millisecond)
	require.Equal(t, rabbitmq.Requeued{Sent: 204}, g.requeue(rabbitmq.RequeueConfig{}))
	require.Equal(t, rabbitmq.Requeued{}, g.requeue(rabbitmq.RequeueConfig{}))
	var want []string
	for _, first := range []bool{true, false} {
		for _, msg := range messages {
			if odd(msg) == first {
				want = append(want, string(msg.Payload))
			}
		}
	}
	require.Equal(t, want, bodies(g.drain(g.queue, 250)))
}

// RabbitMQ 3 drops a message that goes round without a rejection, and takes x-death's word for
// where it has been.
func TestRequeueOfALetterThatHasWaitedIsNotDropped(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{Quorum: true, DeliveryLimit: 1})
	archive := g.admin.queue(nil)
	hall := g.admin.queue(amqp091.Table{
		amqp091.QueueMessageTTLArg: 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": archive,
	})
	ch := g.channel()
	require.NoError(t, ch.QueueUnbind(g.dead, "", g.dead, nil))
	require.NoError(t, ch.QueueBind(hall, "", g.dead, false, nil))
	out, err := subscriber(t, g.broker, rabbitmq.SubscriberConfig{}).Subscribe(t.Context(), g.topic)
	require.NoError(t, err)
	require.NoError(t, publisher(t, g.broker, rabbitmq.PublisherConfig{}).Publish(g.topic, newMessages(1)...))
	for range 2 {
		for range 2 {
			receive(t, out).Nack()
		}
		rig.Eventually(t, "it went through the hall into the archive", func() bool { return g.ready(archive) == 1 })
		done, err := rabbitmq.Requeue(t.Context(), g.broker, archive, rabbitmq.RequeueConfig{})
		require.NoError(t, err)
		require.Equal(t, 1, done.Sent)
	}
	receive(t, out).Ack()
}

func TestRequeueTakesWhatPoisonQueuePublished(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	poison := g.admin.queue(nil)
	queues := rabbitmq.NewQueueConfig(uri(t), rabbitmq.Queues{})
	msg := newMessages(1)[0]
	msg.Metadata.Set("key", "value")
	for _, name := range []string{
		middleware.ReasonForPoisonedKey, middleware.PoisonedTopicKey, middleware.PoisonedHandlerKey, middleware.PoisonedSubscriberKey,
	} {
		msg.Metadata.Set(name, g.topic)
	}
	lost := newMessages(2)[1]
	require.NoError(t, publisher(t, queues, rabbitmq.PublisherConfig{}).Publish(poison, lost, msg))
	done, err := rabbitmq.Requeue(t.Context(), g.broker, poison, rabbitmq.RequeueConfig{Replay: "r"})
	require.ErrorContains(t, err, lost.UUID)
	require.ErrorContains(t, err, "set RequeueConfig.To")
	require.Equal(t, rabbitmq.Requeued{Sent: 1, Failed: 1}, done)
	got := g.drain(g.queue, 1)[0]
	require.Equal(t, amqp091.Table{
		"_watermill_message_uuid": msg.UUID, "key": "value", inbox.ReplayField: "r", inbox.ReplayAttemptField: "1",
	}, got.Headers)
}

func TestRequeueIsSharedByTwo(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	g.bury(newMessages(500)...)
	sent := make(chan int)
	for range 2 {
		go func() {
			done, err := rabbitmq.Requeue(t.Context(), g.broker, g.dead, rabbitmq.RequeueConfig{Plain: true})
			assert.NoError(t, err)
			sent <- done.Sent
		}()
	}
	require.Equal(t, 500, <-sent+<-sent)
	arrived := map[string]bool{}
	for _, d := range g.drain(g.queue, 500) {
		arrived[d.MessageId] = true
		require.NotContains(t, d.Headers, inbox.ReplayField)
		require.Equal(t, "1", d.Headers[inbox.ReplayAttemptField])
	}
	require.Len(t, arrived, 500)
	require.Equal(t, 0, g.ready(g.dead))
}

package rabbitmq_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

func TestRequeueLeavesWhatItCannotSend(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	g.bury(newMessages(5)...)
	errNo := errors.New("no such order")
	_, err := rabbitmq.Requeue(t.Context(), g.broker, g.dead, rabbitmq.RequeueConfig{
		To: func(letter *message.Message) (string, error) {
			switch string(letter.Payload) {
			case "message 0":
				return "", errNo
			case "message 1":
				return g.queue + ".gone", nil
			}
			return g.queue, nil
		},
		Payload: func(letter *message.Message) (message.Payload, error) {
			if string(letter.Payload) == "message 3" {
				return nil, errNo
			}
			return append(letter.Payload, " corrected"...), nil
		},
	})
	require.ErrorIs(t, err, errNo)
	require.ErrorContains(t, err, g.queue+".gone")
	require.ErrorContains(t, err, g.dead)
	require.Equal(t, []string{"message 2 corrected", "message 4 corrected"}, bodies(g.drain(g.queue, 2)))
	require.Equal(t, []string{"message 0", "message 1", "message 3"}, bodies(g.drain(g.dead, 3)))
}

func TestRequeueStopsWhereAQueueTakesNoMore(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	full := g.admin.queue(amqp091.Table{amqp091.QueueMaxLenArg: 1, amqp091.QueueOverflowArg: amqp091.QueueOverflowRejectPublish})
	g.bury(newMessages(250)...)
	done, err := rabbitmq.Requeue(t.Context(), g.broker, g.dead, rabbitmq.RequeueConfig{
		To: func(*message.Message) (string, error) { return full, nil },
	})
	require.ErrorContains(t, err, "basic.nack")
	require.ErrorContains(t, err, "the rest was not tried")
	require.Equal(t, done.Sent+g.ready(g.dead), 250)
	require.LessOrEqual(t, done.Sent+done.Failed, 100)
}

// What is lost with the connection comes with the next call.
func TestRequeueGoesOnAfterALostConnection(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t, rabbitmq.Queues{Quorum: true})
	messages := newMessages(250)
	g.bury(messages...)
	wire, through := behind(t)
	broken := g.broker
	broken.Connection.AmqpURI = through
	looked := 0
	done, err := rabbitmq.Requeue(t.Context(), broken, g.dead, rabbitmq.RequeueConfig{Wanted: func(*message.Message) bool {
		if looked++; looked == 150 {
			wire.Cut()
		}
		return true
	}})
	require.Error(t, err)
	require.Equal(t, 100, done.Sent)
	sent := 0
	rig.Eventually(t, "RabbitMQ has noticed, and the rest is sent", func() bool {
		sent += g.requeue(rabbitmq.RequeueConfig{}).Sent
		return sent >= 150 && g.ready(g.dead) == 0 // some acks may be lost as well
	})
	arrived := map[string]bool{}
	for _, d := range g.drain(g.queue, g.ready(g.queue)) {
		arrived[d.MessageId] = true
	}
	require.Len(t, arrived, 250)
}

func TestRequeueEndsWithItsContext(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	g.bury(newMessages(150)...)
	ctx, cancel := context.WithCancel(t.Context())
	done, err := rabbitmq.Requeue(ctx, g.broker, g.dead, rabbitmq.RequeueConfig{Wanted: func(*message.Message) bool {
		cancel()
		return true
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, rabbitmq.Requeued{Sent: 100}, done)
	require.Equal(t, 50, g.ready(g.dead))
}

func TestRequeueTellsOfWrongSettings(t *testing.T) {
	g := newGraveyard(t, rabbitmq.Queues{})
	_, err := rabbitmq.Requeue(t.Context(), g.broker, g.dead+".not", rabbitmq.RequeueConfig{})
	require.ErrorContains(t, err, g.dead+".not")
	_, err = rabbitmq.Requeue(t.Context(), amqp.Config{}, g.dead, rabbitmq.RequeueConfig{Limit: -1, PerSecond: -1})
	for _, want := range []string{"Limit", "PerSecond", "AmqpURI"} {
		require.ErrorContains(t, err, want)
	}
}

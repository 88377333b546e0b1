package deadletter_test

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

var queueTypes = map[string]rabbitmq.Queues{
	"classic": {DeadLetters: true},
	"quorum":  {DeadLetters: true, Quorum: true, DeliveryLimit: 2},
}

// Messages fail until RabbitMQ gives them up. The letters, and one of a message that was handled and
// whose ack was lost until RabbitMQ gave it up too, are sent back to the handler, which is fixed
// now; some of them twice, as by a process that died before its acks.
func TestDeadLettersOfRabbitMQ(t *testing.T) {
	t.Parallel()
	settings := map[string]func(*millrace.Inbox){
		"":                    func(*millrace.Inbox) {},
		", failures recorded": func(i *millrace.Inbox) { i.RecordFailures = true },
	}
	for kind, queues := range queueTypes {
		for setting, change := range settings {
			t.Run(kind+setting, func(t *testing.T) {
				t.Parallel()
				each(t, func(b *bed) { deadLettersComeBack(newRabbit(b, queues), change) })
			})
		}
	}
}

func deadLettersComeBack(r *rabbit, change func(*millrace.Inbox)) {
	messages := newMessages(10)
	bad, good := of("bad", messages), of("good", messages)
	r.serve(r.inbox(change), r.neverAcks(good[0]))
	r.publish(messages...)
	rig.Eventually(r, "the bad ones are given up", func() bool { return r.ready(r.dead) == len(bad)+1 })
	r.endsIn(once(good...))

	r.fixed.Store(true)
	duplicates := r.events.Count("duplicate")
	corrected := bad[0].Copy()
	corrected.Payload = []byte("corrected")
	r.sendAndDie(bad[1], good[0])
	done, err := rabbitmq.Requeue(r.Context(), r.broker, r.dead, rabbitmq.RequeueConfig{
		Replay: "the fix of May",
		Payload: func(letter *message.Message) (message.Payload, error) {
			if letter.UUID == bad[0].UUID {
				return corrected.Payload, nil
			}
			return letter.Payload, nil
		},
	})
	require.NoError(r, err)
	require.Equal(r, rabbitmq.Requeued{Sent: len(bad) + 1}, done)
	want := once(messages...)
	want[corrected.UUID] = []string{"corrected"}
	r.endsIn(want)
	rig.Eventually(r, "all copies are handled", func() bool {
		return r.events.Count("duplicate") >= duplicates+3 && r.events.Count("completed") >= len(messages)
	})
	require.Equal(r, 0, r.ready(r.dead))
	require.Equal(r, len(messages), r.events.Count("completed"))
	require.Equal(r, want, r.ledger())
	for _, msg := range bad {
		r.keeps(msg)
		given := r.given(msg)
		assert.Equal(r, "the fix of May", given[inbox.ReplayField])
		assert.Equal(r, "1", given[inbox.ReplayAttemptField])
		assert.Contains(r, given[rabbitmq.DeathsField], r.queue)
		assert.NotContains(r, given, "x-death")
	}
	r.nothingOpen()
}

// neverAcks fails each delivery of msg after it was handled, until the handler is fixed.
func (r *rabbit) neverAcks(msg *message.Message) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			produced, err := next(m)
			if err == nil && m.UUID == msg.UUID && !r.fixed.Load() {
				return nil, errAckLost
			}
			return produced, err
		}
	}
}

// sendAndDie sends letters back, and dies before it acks them.
func (r *rabbit) sendAndDie(letters ...*message.Message) {
	r.Helper()
	ch, all := r.channel(), r.ready(r.dead)
	for range all {
		d, found, err := ch.Get(r.dead, false)
		require.NoError(r, err)
		require.True(r, found)
		if !slices.ContainsFunc(letters, func(msg *message.Message) bool { return msg.UUID == d.MessageId }) {
			continue
		}
		headers := amqp091.Table{}
		for name, value := range d.Headers {
			headers[name] = value
		}
		headers[inbox.ReplayField], headers[inbox.ReplayAttemptField] = "the fix of May", "1"
		headers[rabbitmq.DeathsField] = headers["x-death"]
		delete(headers, "x-death")
		require.NoError(r, ch.PublishWithContext(r.Context(), "", r.queue, true, false, amqp091.Publishing{
			Headers: headers, Body: d.Body, MessageId: d.MessageId, DeliveryMode: d.DeliveryMode,
		}))
	}
	require.NoError(r, ch.Close())
	rig.Eventually(r, "they are back", func() bool { return r.ready(r.dead) == all })
}

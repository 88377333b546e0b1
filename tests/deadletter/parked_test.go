package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// parkedLetters is a service whose messages are parked after two attempts, and announced in a queue of
// dead letters by its outbox.
type parkedLetters struct {
	*rabbit
	letters       string // queue
	messages, bad []*message.Message
}

var stuck = admin.Filter{Consumer: "billing", Status: admin.Parked}

// What was parked, and whose letter went out, comes back: by an operator, by its letter, by both.
// However it does, it runs once.
func TestParkedMessagesAndTheirLetters(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]func(p *parkedLetters){
		"retried, then the letters come":                         retriedFirst,
		"the letters come, marked as a replay, then a retry":     lettersFirst,
		"the letters come unmarked, then a retry":                lettersUnmarked,
		"a letter comes with a corrected payload":                correctedLetter,
		"the payload is corrected in the table, then the letter": correctedRow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(b *bed) {
				p := newParkedLetters(newRabbit(b, rabbitmq.Queues{}))
				b.fixed.Store(true)
				body(p)
			})
		})
	}
}

func newParkedLetters(r *rabbit) *parkedLetters {
	r.Helper()
	p := &parkedLetters{rabbit: r, letters: r.declare("_letters", nil), messages: newMessages(6)}
	p.bad = of("bad", p.messages)
	out := rig.NewOutbox(r, r.db.DB, outbox.Config{})
	in := r.inbox()
	durable := pubsub.Durable{
		Store: in.Store, Consumer: "billing", MaxAttempts: 2, Poll: 20 * time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
	durable.OnPark = func(msg *message.Message, reason string) error {
		msg.Metadata.Set("why", reason)
		return out.Publish(p.letters, msg)
	}
	sub, err := durable.Decorate(r.newSubscriber(r.broker))
	require.NoError(r, err)
	r.start(in.Store, func(router *message.Router) {
		router.AddMiddleware(in.Middleware)
		router.AddConsumerHandler("billing", r.topic, sub, r.handle)
	})
	r.relay(r.newPublisher(rabbitmq.NewQueueConfig(r.url, rabbitmq.Queues{})))
	r.publish(p.messages...)
	r.endsIn(once(of("good", p.messages)...))
	rig.Eventually(r, "the letters are out", func() bool { return r.ready(p.letters) == len(p.bad) })
	require.Equal(r, len(p.bad), r.parked())
	return p
}

// relay sends what is in the outbox until the test ends.
func (b *bed) relay(to message.Publisher) {
	b.Helper()
	relay, err := outbox.NewRelay(b.db.Open(b).DB, to, outbox.RelayConfig{})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		assert.NoError(b, <-ended)
	})
}

// sendBack sends the letters back as a replay.
func (p *parkedLetters) sendBack(payload func(*message.Message) (message.Payload, error)) {
	p.Helper()
	done, err := rabbitmq.Requeue(p.Context(), p.broker, p.letters, rabbitmq.RequeueConfig{
		Payload: payload,
		To:      func(*message.Message) (string, error) { return p.queue, nil },
	})
	require.NoError(p, err)
	require.Equal(p, rabbitmq.Requeued{Sent: len(p.bad)}, done)
}

func (p *parkedLetters) retryAll(want int) {
	p.Helper()
	n, err := admin.New(p.store).RetryAll(p.Context(), stuck, operator, nil, admin.Pace{})
	require.NoError(p, err)
	require.Equal(p, want, n)
}

// ends says that nothing is left to do but to look at the ledger.
func (p *parkedLetters) ends(want ledger) {
	p.Helper()
	p.endsIn(want)
	rig.Eventually(p, "nothing waits", func() bool { return p.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
	require.Equal(p, want, p.ledger())
	for _, msg := range p.bad {
		p.keeps(msg)
	}
	p.nothingOpen()
}

func retriedFirst(p *parkedLetters) {
	p.retryAll(len(p.bad))
	p.ends(once(p.messages...))
	p.sendBack(nil)
	rig.Eventually(p, "each is a duplicate", func() bool { return p.events.Count("duplicate") == len(p.bad) })
	p.ends(once(p.messages...))
}

func lettersFirst(p *parkedLetters) {
	p.sendBack(nil)
	p.ends(once(p.messages...))
	p.retryAll(0)
	story := rig.Story(p, p.store, p.bad[0].UUID)
	require.Len(p, story.Audit, 1)
	assert.Contains(p, story.Audit[0].Operator.Reason, "dead letters of "+p.letters)
}

func lettersUnmarked(p *parkedLetters) {
	out, err := p.newSubscriber(rabbitmq.NewQueueConfig(p.url, rabbitmq.Queues{})).Subscribe(p.Context(), p.letters)
	require.NoError(p, err)
	for range p.bad {
		letter := p.receive(out)
		require.NoError(p, p.publisher.Publish(p.topic, letter))
		letter.Ack()
	}
	rig.Eventually(p, "each is a duplicate", func() bool { return p.events.Count("duplicate") == len(p.bad) })
	require.Equal(p, len(p.bad), p.parked(), "stored is stored")
	p.retryAll(len(p.bad))
	p.ends(once(p.messages...))
}

func correctedLetter(p *parkedLetters) {
	p.sendBack(func(letter *message.Message) (message.Payload, error) {
		if letter.UUID == p.bad[0].UUID {
			return message.Payload("corrected"), nil
		}
		return letter.Payload, nil
	})
	want := once(p.messages...)
	want[p.bad[0].UUID] = []string{"corrected"}
	p.ends(want)
}

func correctedRow(p *parkedLetters) {
	rows := rig.Find(p, p.store, stuck)
	require.NoError(p, admin.New(p.store).ReplacePayload(p.Context(), rows[0].ID, []byte("corrected"), operator))
	p.retryAll(len(p.bad))
	want := once(p.messages...)
	want[rows[0].UUID] = []string{"corrected"}
	p.ends(want)
	p.sendBack(nil)
	rig.Eventually(p, "the old payload is another message", func() bool { return p.events.Count("collision") == 1 })
	rig.Eventually(p, "it waits for an operator", func() bool { return p.parked() == 1 })
	require.Equal(p, want, p.ledger())
}

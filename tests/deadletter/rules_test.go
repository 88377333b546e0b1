package deadletter_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
)

// A consumer with a rule for replays gets dead letters that it has never handled, and one that it
// has: marked as a replay, its rule holds; plain, they are handled as they would have been.
func TestDeadLettersForAConsumerWithARule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule         inbox.ReplayRule
		plain        bool
		sent, parked int // of two bad ones
	}{
		"suppress, marked": {rule: inbox.ReplaySuppress},
		"suppress, plain":  {rule: inbox.ReplaySuppress, plain: true, sent: 2},
		"refuse, marked":   {rule: inbox.ReplayRefuse, parked: 2},
		"refuse, plain":    {rule: inbox.ReplayRefuse, plain: true, sent: 2},
		"allow, marked":    {sent: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(b *bed) {
				r := newRabbit(b, rabbitmq.Queues{DeadLetters: true})
				messages := r.sendsInvoices(c.rule)
				b.fixed.Store(true)
				done, err := rabbitmq.Requeue(b.Context(), r.broker, r.dead, rabbitmq.RequeueConfig{Plain: c.plain})
				require.NoError(b, err)
				require.Equal(b, 3, done.Sent)
				want := once(messages...)
				if c.parked > 0 {
					want = once(of("good", messages)...)
				}
				b.endsIn(want)
				rig.Eventually(b, "each is handled or parked", func() bool {
					return b.events.Count("duplicate") >= 1 && b.events.Count("completed")+b.parked() == len(messages)
				})
				require.Equal(b, c.parked, b.parked())
				require.Equal(b, 2+c.sent, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
				if c.parked > 0 {
					n, err := admin.New(b.store).RetryAll(b.Context(), stuck, operator, r.publisher, admin.Pace{})
					require.NoError(b, err)
					require.Equal(b, c.parked, n)
					b.endsIn(once(messages...))
				}
				assert.Equal(b, once(messages...), b.ledger())
			})
		})
	}
}

// sendsInvoices starts a service that sends an invoice for each message, and has two bad
// messages and a good one among its dead letters.
func (r *rabbit) sendsInvoices(rule inbox.ReplayRule) (messages []*message.Message) {
	r.Helper()
	messages = newMessages(4)
	out := rig.NewOutbox(r, r.db.DB, outbox.Config{})
	in := r.inbox(func(i *millrace.Inbox) { i.OnReplay, i.Outbox = rule, out })
	r.start(in.Store, func(router *message.Router) {
		router.AddMiddleware(losesAck(messages[0]), in.Middleware)
		router.AddHandler("billing", r.topic, r.newSubscriber(r.broker), "invoices", r.publisher,
			func(msg *message.Message) ([]*message.Message, error) {
				return message.Messages{message.NewMessage(watermill.NewUUID(), msg.Payload)}, r.handle(msg)
			})
	})
	r.publish(messages...)
	rig.Eventually(r, "three are given up", func() bool { return r.ready(r.dead) == 3 })
	r.endsIn(once(of("good", messages)...))
	return messages
}

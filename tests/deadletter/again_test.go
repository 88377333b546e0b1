package deadletter_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

var operator = admin.Operator{Name: "ann", Reason: "they were handled before the reset"}

const old, fresh = 8, 2

type reset struct {
	made   string // when the old messages tell that they were
	forget bool   // the inbox has forgotten them by then
	parked int
	twice  bool // they have their effects again
}

// The offsets of a consumer group are set back to the beginning, and everything in the log comes
// again, before what is new.
func TestOffsetReset(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-9 * 24 * time.Hour)
	for name, c := range map[string]reset{
		"within the retention":                    {},
		"beyond it, messages tell their time":     {made: long.Format(time.RFC3339), forget: true, parked: old},
		"beyond it, messages do not tell a time":  {forget: true, twice: true},
		"beyond it, messages were made after all": {made: time.Now().Format(time.RFC3339), forget: true, twice: true},
	} {
		for _, dialect := range []string{"postgres", "mysql"} {
			t.Run(name+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				offsetReset(newBed(t, testdb.On(t, dialect)), c)
			})
		}
	}
}

func offsetReset(b *bed, c reset) {
	b.fixed.Store(true)
	l, messages := b.sqlLane(), newMessages(old+fresh)
	for _, msg := range messages[:old] {
		if c.made != "" {
			msg.Metadata.Set("ce_time", c.made)
		}
	}
	require.NoError(b, l.publisher.Publish("orders", messages[:old]...))
	stop := b.bill(l)
	b.endsIn(once(messages[:old]...))
	stop()
	if c.forget {
		b.forget(old)
	}
	b.exec(`DELETE FROM watermill_offsets_orders WHERE consumer_group = 'billing'`)
	require.NoError(b, l.publisher.Publish("orders", messages[old:]...))
	b.bill(l)
	want := once(messages...)
	if c.twice { // nothing tells that they are old
		for _, msg := range messages[:old] {
			want[msg.UUID] = append(want[msg.UUID], want[msg.UUID]...)
		}
	}
	b.endsIn(want) // the new ones are the last
	require.Equal(b, c.parked, b.parked())
	if !c.forget {
		require.GreaterOrEqual(b, b.events.Count("duplicate"), old)
	}
	n, err := admin.New(b.store).DiscardAll(b.Context(), admin.Filter{Consumer: "billing", Status: admin.Parked}, operator, admin.Pace{})
	require.NoError(b, err)
	require.Equal(b, c.parked, n)
	b.nothingOpen()
}

// A producer sends its old messages again, with their ids, and new ones among them: plain or
// marked as a replay. One of them is not what it was.
func TestBackfill(t *testing.T) {
	t.Parallel()
	for name, publisher := range map[string]func(message.Publisher) message.Publisher{
		"plain":  func(p message.Publisher) message.Publisher { return p },
		"marked": func(p message.Publisher) message.Publisher { return pubsub.AsReplay(p, "backfill of May") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(b *bed) {
				r := newRabbit(b, rabbitmq.Queues{})
				b.fixed.Store(true)
				r.serve(b.inbox())
				messages := newMessages(25)
				old, fresh := messages[:20], messages[20:]
				r.publish(old...)
				b.endsIn(once(old...))
				forged := old[7].Copy()
				forged.Payload = []byte("another one")
				again := []*message.Message{forged}
				for i, msg := range old {
					again = append(again, msg.Copy())
					if i%4 == 0 {
						again = append(again, fresh[i/4])
					}
				}
				require.NoError(b, publisher(r.publisher).Publish(r.topic, again...))
				b.endsIn(once(messages...))
				rig.Eventually(b, "every copy is told", func() bool { return b.events.Count("duplicate") >= len(old) })
				rig.Eventually(b, "the other one waits for an operator", func() bool { return b.parked() == 1 })
				rig.Eventually(b, "every run is told", func() bool { return b.events.Count("completed") >= len(messages) })
				require.Equal(b, 1, b.events.Count("collision"))
				require.Equal(b, once(messages...), b.ledger())
				require.Equal(b, len(messages), b.events.Count("completed"))
			})
		})
	}
}

// RabbitMQ takes a message away from a process that does not know it, whose handler goes on, and
// gives it to another one.
func TestRebalanceInTheMiddleOfAHandler(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"that succeeds": nil, "that fails": errBroken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(b *bed) { rebalanced(newRabbit(b, rabbitmq.Queues{}), end) })
		})
	}
}

func rebalanced(r *rabbit, end error) {
	msg := message.NewMessage(watermill.NewUUID(), []byte("one"))
	running, taken := make(chan struct{}), make(chan struct{})
	wire, through := servers.Before(r, r.url)
	lost := r.broker
	lost.Connection.AmqpURI = through
	first := r.inbox(func(i *millrace.Inbox) { i.Timeout = rig.Patience })
	r.start(first.Store, func(router *message.Router) {
		router.AddMiddleware(first.Middleware)
		router.AddConsumerHandler("billing", r.topic, r.newSubscriber(lost), func(msg *message.Message) error {
			if err := r.handle(msg); err != nil {
				return err
			}
			close(running)
			<-taken
			return end
		})
	})
	r.publish(msg)
	<-running
	second := r.inbox()
	plugged := second.Store
	if r.db.Dialect == "sqlite" { // the plugin's checks would wait for the handler that holds the file
		second.Store, plugged = r.process(func(c *inbox.Config) { c.WithoutPlugin = true }), nil
	}
	r.start(plugged, func(router *message.Router) {
		router.AddMiddleware(noticed(taken), second.Middleware)
		router.AddConsumerHandler("billing", r.topic, r.newSubscriber(r.broker), r.handle)
	})
	wire.Cut()
	rig.Eventually(r, "the other process is done with it", func() bool {
		return r.events.Count("completed") == 1 && r.events.Count("duplicate")+r.events.Count("failed") >= 1
	})
	require.Equal(r, once(msg), r.ledger())
	if end == nil {
		assert.Equal(r, 0, r.events.Count("failed"))
	} else {
		assert.Equal(r, 0, r.events.Count("duplicate"))
	}
	r.nothingOpen()
}

// noticed closes taken at the first delivery.
func noticed(taken chan struct{}) message.HandlerMiddleware {
	once := sync.OnceFunc(func() { close(taken) })
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			once()
			return next(msg)
		}
	}
}

package tests_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Every message is published twice, and the service is restarted twice while its handler
// runs: RabbitMQ gives the message to the next one within milliseconds. The first handler
// finishes although its delivery was cancelled, the second one gives up.
func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	const messages = 100
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		r := newRabbit(newBed(t, db))
		first := r.launch()
		finishing := r.restartAt(messages/4, func(context.Context) error { return nil })
		r.produce(messages / 2)
		second := r.replace(first, finishing)
		givingUp := r.restartAt(messages/2+messages/4, func(ctx context.Context) error { return ctx.Err() })
		r.produce(messages / 2)
		third := r.replace(second, givingUp)
		rig.Eventually(r, "everything is handled", func() bool {
			return len(r.invoices()) == messages && r.ready(r.orders) == 0
		})
		third.close()
		rig.Eventually(r, "everything is read", func() bool { return r.ready(r.issued) == 0 })
		require.NoError(t, r.reader.Close())

		again := 0
		for source, copies := range r.invoices() {
			again += len(copies) - 1
			for _, c := range copies {
				assert.Equal(t, copies[0].UUID, c.UUID, "invoices for %s", source)
				assert.Equal(t, copies[0].Metadata, c.Metadata)
				assert.Equal(t, copies[0].Payload, c.Payload)
			}
			assert.Equal(t, 1, r.effectsOf(source))
		}
		t.Logf("%d messages doubled: %d runs, %d failed, %d duplicates, %d invoices published again as they were",
			messages, r.events.Count("completed"), r.events.Count("failed"), r.events.Count("duplicate"), again)
		assert.Equal(t, messages, r.effects())
		assert.Equal(t, messages, r.events.Count("completed"))
		assert.Equal(t, 1, r.events.Count("failed"), "the handler that gave up")
		assert.GreaterOrEqual(t, r.events.Count("duplicate"), messages)
		assert.Equal(t, 0, r.count(`SELECT COUNT(*) FROM millrace_outcomes`))
	})
}

// rabbit is two queues and what was read from the second.
type rabbit struct {
	*bed
	url            string
	orders, issued string
	producer       *amqp.Publisher
	reader         *amqp.Subscriber
	channel        *amqp091.Channel

	mu      sync.Mutex
	read    map[string][]*message.Message // by what they were issued for
	runs    int
	restart *restart // the next one
}

// restart is a moment in the run of a handler.
type restart struct {
	run     int
	finish  func(ctx context.Context) error
	running chan string   // gets the message
	taken   chan struct{} // closed when the next service has it too
	uuid    string
}

func newRabbit(b *bed) *rabbit {
	b.Helper()
	url := os.Getenv("MILLRACE_TEST_RABBITMQ")
	if url == "" {
		testdb.Missing(b, "RabbitMQ", `set MILLRACE_TEST_RABBITMQ, or: eval "$(tests/services.sh)"`)
	}
	r := &rabbit{
		bed: b, url: url, orders: "orders-" + watermill.NewUUID(), issued: "invoices-" + watermill.NewUUID(),
		read: map[string][]*message.Message{},
	}
	conn, err := amqp091.Dial(url)
	require.NoError(b, err)
	r.channel, err = conn.Channel()
	require.NoError(b, err)
	b.Cleanup(func() {
		for _, queue := range []string{r.orders, r.issued} {
			_, err := r.channel.QueueDelete(queue, false, false, false)
			assert.NoError(b, err)
		}
		assert.NoError(b, conn.Close())
	})
	r.producer, err = amqp.NewPublisher(amqp.NewDurableQueueConfig(url), watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, r.producer.Close()) })
	r.reader = r.subscriber()
	require.NoError(b, r.reader.SubscribeInitialize(r.orders)) // RabbitMQ drops what has no queue yet
	messages, err := r.reader.Subscribe(b.Context(), r.issued)
	require.NoError(b, err)
	go func() {
		for m := range messages {
			r.mu.Lock()
			source := string(m.Payload[len("invoice for "):])
			r.read[source] = append(r.read[source], m.Copy())
			r.mu.Unlock()
			m.Ack()
		}
	}()
	return r
}

func (r *rabbit) subscriber() *amqp.Subscriber {
	r.Helper()
	s, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(r.url), watermill.NopLogger{})
	require.NoError(r, err)
	return s
}

func (r *rabbit) invoices() map[string][]*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make(map[string][]*message.Message, len(r.read))
	for source, copies := range r.read {
		found[source] = copies
	}
	return found
}

func (r *rabbit) ready(queue string) int {
	r.Helper()
	q, err := r.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(r, err)
	return q.Messages
}

// produce publishes n messages, each twice.
func (r *rabbit) produce(n int) {
	r.Helper()
	for i := range n {
		msg := newMessage(fmt.Sprint(i))
		require.NoError(r, r.producer.Publish(r.orders, msg, again(msg)))
	}
}

// restartAt plans a restart in the n-th run of the handler, which ends by finish.
func (r *rabbit) restartAt(n int, finish func(context.Context) error) *restart {
	s := &restart{run: n, finish: finish, running: make(chan string, 1), taken: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restart = s
	return s
}

// consumer is one process of the service.
type consumer struct {
	*rabbit
	router  *message.Router
	store   *inbox.Store
	stopped chan error

	mu    sync.Mutex
	waits *restart // of the one before
}

func (r *rabbit) launch() *consumer { return r.launchAfter(nil) }

func (r *rabbit) launchAfter(before *restart) *consumer {
	r.Helper()
	// On SQLite the plugin's check waits for the handler of the one before, which holds the file.
	alone := before != nil && r.db.Dialect == "sqlite"
	store := r.newStore(r.db.Open(r).DB, inbox.Config{WithoutPlugin: alone})
	c := &consumer{rabbit: r, store: store, waits: before, stopped: make(chan error, 1)}
	publisher, err := amqp.NewPublisher(amqp.NewDurableQueueConfig(r.url), watermill.NopLogger{})
	require.NoError(r, err)
	c.router = rig.NewRouter(r)
	c.router.AddMiddleware(c.tellTaken, millrace.Inbox{Store: c.store}.Middleware)
	if !alone {
		c.router.AddPlugin(c.store.Plugin())
	}
	c.router.AddHandler("billing", r.orders, r.subscriber(), r.issued, &closing{Publisher: publisher}, c.handle)
	go func() { c.stopped <- c.router.Run(context.WithoutCancel(r.Context())) }()
	r.Cleanup(func() { _ = c.router.Close() })
	<-c.router.Running()
	return c
}

// closing lets nobody publish once it is closed: then watermill-amqp races with itself.
type closing struct {
	message.Publisher
	mu     sync.RWMutex
	closed bool
}

func (p *closing) Publish(topic string, msgs ...*message.Message) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errors.New("the publisher is closed")
	}
	return p.Publisher.Publish(topic, msgs...)
}

func (p *closing) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.Publisher.Close()
}

// replace closes c in the middle of a handler's run, which ends only when the service
// that is returned has the same message.
func (r *rabbit) replace(c *consumer, s *restart) *consumer {
	r.Helper()
	s.uuid = rig.Within(r, s.running, "the handler does not get that far")
	next := r.launchAfter(s)
	c.close()
	return next
}

func (c *consumer) close() {
	c.Helper()
	require.NoError(c, c.router.Close())
	require.NoError(c, <-c.stopped)
	require.NoError(c, c.store.Close(c.Context()))
}

// tellTaken notices the message in whose run the service before was closed.
func (c *consumer) tellTaken(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		c.mu.Lock()
		if c.waits != nil && c.waits.uuid == msg.UUID {
			close(c.waits.taken)
			c.waits = nil
		}
		c.mu.Unlock()
		return next(msg)
	}
}

func (c *consumer) handle(msg *message.Message) ([]*message.Message, error) {
	c.rabbit.mu.Lock()
	c.runs++
	s, now := c.restart, c.runs == c.restart.run
	c.rabbit.mu.Unlock()
	if !now {
		return invoice(msg)
	}
	ctx := msg.Context()
	msg.SetContext(context.WithoutCancel(ctx))
	produced, err := invoice(msg)
	s.running <- msg.UUID
	<-ctx.Done()                  // the router closes
	if c.db.Dialect == "sqlite" { // the next service waits for the file, with whatever message it was given
		return produced, errors.Join(err, s.finish(ctx))
	}
	select {
	case <-s.taken:
	case <-time.After(rig.Patience):
		return nil, errors.New("RabbitMQ did not deliver the message again")
	}
	return produced, errors.Join(err, s.finish(ctx))
}

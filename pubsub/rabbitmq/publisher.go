package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/outbox"
)

// PublisherConfig is how a [Publisher] behaves. The zero value is right for most services.
type PublisherConfig struct {
	// Logger gets a line when the connection is lost and when it is back. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Timeout bounds a whole call of Publish, which returns at most a second later whatever
	// RabbitMQ and the network do. Defaults to 20 seconds: longer than the 15 after which missing
	// heartbeats show that the connection is dead, so that the error says so, and shorter than
	// the 25 that middleware.Inbox gives a handler.
	Timeout time.Duration

	// Window is how many messages of a call may be unconfirmed at once. Defaults to 500: with
	// more, RabbitMQ gets no faster and memory holds more.
	Window int

	// AllowUnroutable lets RabbitMQ drop, and yet confirm, messages that no queue takes. By
	// default messages are published as mandatory, and one that no queue takes is an error.
	AllowUnroutable bool
}

func (c *PublisherConfig) setDefaults() {
	c.Logger = steady.Apart(steady.Default(c.Logger), nil)
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	if c.Window == 0 {
		c.Window = 500
	}
}

// Validate returns every problem of c at once.
func (c PublisherConfig) Validate() error { return invalid("PublisherConfig", c.problems()) }

func (c PublisherConfig) problems() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Timeout < 0 {
		problem("Timeout %v is negative", c.Timeout)
	}
	if c.Window < 0 || c.Window > 65_535 {
		problem("Window %d is not between 1 and 65,535", c.Window)
	}
	return errors.Join(problems...)
}

// defaultChannels is how many channels a publisher uses at most if the Config does not say: about
// as many as there are handlers running at once.
const defaultChannels = 16

// grace is how long Publish waits, after its Timeout, to learn which messages were confirmed.
const grace = time.Second

// Publisher publishes messages and waits until RabbitMQ has confirmed each of them. It sends the
// messages of one call without waiting in between, and then waits for all confirms. It is safe
// for concurrent use.
type Publisher struct {
	broker   amqp.Config
	config   PublisherConfig
	source   source
	channels *pool

	closing atomic.Bool
	calls   sync.RWMutex // held for writing by Close, for reading by each call

	mu       sync.Mutex
	declared map[string]*amqp091.Connection // by topic: where its exchange was declared
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher connects to RabbitMQ and returns a publisher that keeps the connection. It
// takes any Config of watermill-amqp, for instance one of [NewQueueConfig] or
// [NewPubSubConfig], and differs from watermill-amqp's publisher in that
//
//   - messages are always confirmed and mandatory, whatever ConfirmDelivery and Mandatory say;
//   - it refuses Transactional, with which watermill-amqp reports messages as published that
//     were not;
//   - it refuses Immediate, which RabbitMQ dropped in 2013;
//   - ChannelPoolSize is the highest number of channels, by default 16. A call uses one, and
//     waits while all are in use;
//   - Marshaler defaults to [Marshaler].
func NewPublisher(broker amqp.Config, config PublisherConfig) (*Publisher, error) {
	broker = withDefaults(broker)
	if err := errors.Join(config.problems(), broker.ValidatePublisher(), publishable(broker)); err != nil {
		return nil, invalid("Config", err)
	}
	config.setDefaults()
	l, err := newLink(broker.Connection, config.Logger)
	if err != nil {
		return nil, errorf("%w", err)
	}
	return newPublisher(l, broker, config), nil
}

// NewPublisherWithConnection is [NewPublisher] on a connection that others use too, and that Close
// does not close. Prefer a connection of its own: RabbitMQ slows publishers down by not reading
// from their connection, and then does not read a subscriber's acks on it either.
func NewPublisherWithConnection(
	conn *amqp.ConnectionWrapper, broker amqp.Config, config PublisherConfig,
) (*Publisher, error) {
	broker = withDefaults(broker)
	err := errors.Join(config.problems(), broker.ValidatePublisherWithConnection(), publishable(broker))
	if conn == nil {
		err = errors.Join(err, errors.New("a connection is required"))
	}
	if err != nil {
		return nil, invalid("Config", err)
	}
	config.setDefaults()
	return newPublisher(shared{conn}, broker, config), nil
}

func withDefaults(broker amqp.Config) amqp.Config {
	if broker.Marshaler == nil {
		broker.Marshaler = Marshaler{}
	}
	if broker.TopologyBuilder == nil {
		broker.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	if broker.Publish.ChannelPoolSize == 0 {
		broker.Publish.ChannelPoolSize = defaultChannels
	}
	return broker
}

func publishable(broker amqp.Config) error {
	problems := []error{waited("Exchange", broker.Exchange.NoWait)}
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if broker.Publish.Transactional {
		problem("Publish.Transactional hides failures: leave it out, RabbitMQ confirms every message anyway")
	}
	if broker.Publish.Immediate {
		problem("RabbitMQ does not know Publish.Immediate, and would close the connection: leave it out")
	}
	if n := broker.Publish.ChannelPoolSize; n < 0 {
		problem("Publish.ChannelPoolSize %d is negative", n)
	}
	return errors.Join(problems...)
}

func newPublisher(from source, broker amqp.Config, config PublisherConfig) *Publisher {
	lent := make(chan struct{}, broker.Publish.ChannelPoolSize)
	return &Publisher{
		broker: broker, config: config, source: from,
		channels: &pool{source: from, window: config.Window, lent: lent},
		declared: map[string]*amqp091.Connection{},
	}
}

// Publish sends messages in their order and returns when RabbitMQ has confirmed all of them:
// then each is in every queue that is bound to get it, and on disk if it is persistent.
//
// If some of several messages failed, it returns an *outbox.PartialError with an error or nil for
// each; after any other error each of them may have arrived or not. It never reports an unconfirmed
// message as published; such a message may have arrived all the same.
//
// An error is outbox.ErrPermanent if the message itself is the reason: no queue takes it, it is
// larger than RabbitMQ allows, it cannot be marshalled, the topic gives an exchange or a routing key of
// more than 255 bytes. If a message cannot be marshalled, those behind it fail too, so that none
// overtakes it. A refusal by RabbitMQ comes only when later messages are on their way: to keep the order
// across such failures, never put two messages of one key into a call.
//
// Without a connection Publish fails at once with [ErrNotConnected]; it does not wait for one. It
// ignores the contexts of the messages.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closing.Load() {
		return errorf("publish to topic %q: %w", topic, ErrClosed)
	}
	p.calls.RLock()
	defer p.calls.RUnlock()
	if p.closing.Load() {
		return errorf("publish to topic %q: %w", topic, ErrClosed)
	}
	if len(messages) == 0 {
		return nil
	}
	items := make([]item, len(messages))
	for n, msg := range messages {
		if msg == nil {
			return errorf("publish to topic %q: message %d of %d is nil", topic, n+1, len(messages))
		}
		items[n].uuid = msg.UUID
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.config.Timeout)
	defer cancel()
	// amqp091 cannot bound a write, so Publish leaves a stuck one behind. It ends with the
	// connection at the latest.
	done := make(chan func() error, 1)
	go func() {
		result := func() error { return errorf("publish to topic %q: %w", topic, errExited) }
		defer func() {
			if r := recover(); r != nil { // the caller gets the marshaler's panic
				result = func() error { panic(r) }
			}
			done <- result
		}()
		err := p.publish(ctx, topic, messages, items)
		result = func() error { return err }
	}()
	select {
	case result := <-done:
		return result()
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case result := <-done:
		return result()
	case <-late.C:
		because := ""
		if s, err := p.source.current(); err == nil {
			because = s.because()
		}
		return errorf("publish to topic %q: %w: nothing could be written for %v%s",
			topic, ErrUnconfirmed, p.config.Timeout, because)
	}
}

func (p *Publisher) publish(ctx context.Context, topic string, messages []*message.Message, items []item) error {
	exchange, key := p.broker.Exchange.GenerateName(topic), p.broker.Publish.GenerateRoutingKey(topic)
	if err := errors.Join(fits("exchange", exchange), fits("routing key", key)); err != nil {
		return errorf("publish to topic %q: %w", topic, outbox.Permanent(err))
	}
	ch, err := p.channels.take(ctx)
	if err != nil {
		return errorf("publish to topic %q: %w", topic, err)
	}
	settled := false
	defer func() { p.channels.give(ch, settled) }()
	if err := p.declare(ch, topic, exchange); err != nil {
		return errorf("publish to topic %q: declare exchange %q: %w", topic, exchange, ch.session.lossIn(err))
	}
	c := &call{
		ctx: ctx, channel: ch, window: p.config.Window, timeout: p.config.Timeout,
		topic: topic, exchange: exchange, key: key,
		mandatory: !p.config.AllowUnroutable, marshaler: p.broker.Marshaler,
		messages: messages, items: items,
	}
	c.run()
	if c.missing(exchange) {
		p.forget(topic)
	}
	settled = c.done() && !c.refused
	if c.refused {
		p.channels.empty()
	}
	return c.result()
}

// declare declares the exchange once per connection.
func (p *Publisher) declare(ch *channel, topic, exchange string) error {
	if exchange == "" {
		return nil
	}
	p.mu.Lock()
	known := p.declared[topic] == ch.session.Connection
	p.mu.Unlock()
	if known {
		return nil
	}
	if err := p.broker.TopologyBuilder.ExchangeDeclare(ch.Channel, exchange, p.broker); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.declared[topic] = ch.session.Connection
	return nil
}

func (p *Publisher) forget(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.declared, topic)
}

// Close waits for the calls in flight, which end within their Timeout, and then closes the
// connection unless it is shared. Later calls of Publish fail with [ErrClosed].
func (p *Publisher) Close() error {
	first := !p.closing.Swap(true)
	p.calls.Lock()
	defer p.calls.Unlock()
	if !first {
		return nil
	}
	p.channels.close()
	if err := p.source.close(); err != nil {
		return errorf("%w", err)
	}
	return nil
}

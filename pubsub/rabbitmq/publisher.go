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
)

// PublisherConfig is how a [Publisher] behaves. The zero value is right for most services.
type PublisherConfig struct {
	// Logger hears when the connection is lost and made again. Defaults to none.
	Logger watermill.LoggerAdapter

	// Timeout bounds a whole call of Publish, which returns at most a second later whatever
	// RabbitMQ and the network do. Defaults to 20 seconds: longer than the 15 after which a
	// dead connection is noticed by its missing heartbeats, so that the error names it, and
	// shorter than the 25 that middleware.Inbox gives a handler.
	Timeout time.Duration

	// Window is how many messages of a call may be unconfirmed at once. Defaults to 500,
	// beyond which RabbitMQ gets no faster and only more is held in memory.
	Window int

	// AllowUnroutable lets RabbitMQ drop, and yet confirm, messages that no queue takes. By
	// default they are published as mandatory, and one that no queue takes is an error.
	AllowUnroutable bool
}

func (c *PublisherConfig) setDefaults() {
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	c.Logger = steady.Apart(c.Logger, nil)
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	if c.Window == 0 {
		c.Window = 500
	}
}

// Validate returns every problem of c at once.
func (c PublisherConfig) Validate() error {
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

// defaultChannels is how many channels a publisher uses at most where the Config does not
// say: about as many as there are handlers running at once.
const defaultChannels = 16

// grace is how long Publish waits, after its Timeout, for the account of what was confirmed.
const grace = time.Second

// Publisher publishes messages and waits until RabbitMQ has confirmed each of them. The
// messages of one call travel one after the other without waiting, and are confirmed
// together. It may be used by several goroutines.
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
//   - Transactional is refused: there watermill-amqp reports messages as published that were
//     not;
//   - Immediate is refused: RabbitMQ has not known it since 2013;
//   - ChannelPoolSize is the highest number of channels, 16 where it is 0. A call uses one,
//     and waits where all are in use;
//   - without a Marshaler it takes [Marshaler].
func NewPublisher(broker amqp.Config, config PublisherConfig) (*Publisher, error) {
	broker = withDefaults(broker)
	if err := errors.Join(config.Validate(), broker.ValidatePublisher(), publishable(broker)); err != nil {
		return nil, fmt.Errorf("rabbitmq: invalid Config: %w", err)
	}
	config.setDefaults()
	l, err := newLink(broker.Connection, config.Logger)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	return newPublisher(l, broker, config), nil
}

// NewPublisherWithConnection is [NewPublisher] on a connection that others use too, and that
// Close leaves alone. Prefer a publisher's own: where RabbitMQ slows publishers down by not
// reading from the connection, acks of a subscriber on it are not heard either.
func NewPublisherWithConnection(
	conn *amqp.ConnectionWrapper, broker amqp.Config, config PublisherConfig,
) (*Publisher, error) {
	broker = withDefaults(broker)
	err := errors.Join(config.Validate(), broker.ValidatePublisherWithConnection(), publishable(broker))
	if conn == nil {
		err = errors.Join(err, errors.New("there is no connection"))
	}
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: invalid Config: %w", err)
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
		problem("Publish.Transactional hides failures: leave it out, every message is confirmed anyway")
	}
	if broker.Publish.Immediate {
		problem("Publish.Immediate is not known to RabbitMQ, which would close the connection")
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
// then each is in all queues that want it, and on disk if it is persistent.
//
// If some of several messages failed, it returns an *outbox.PartialError with what became
// of each; any other error says that none was sent. It never reports a message as published
// that was not confirmed; one that was not may have arrived all the same.
//
// An error is outbox.ErrPermanent if the message itself is the reason: no queue takes it, it
// is larger than RabbitMQ allows, it cannot be marshalled. A message that cannot be marshalled
// holds back those behind it, which then fail too, so that none overtakes it. What RabbitMQ
// refuses is known only when later ones are on their way: who needs the order kept across
// such failures must not put two messages of one key into a call.
//
// Without a connection Publish fails at once with [ErrNotConnected]; it does not wait for
// one. The contexts of the messages are not looked at.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closing.Load() {
		return fmt.Errorf("rabbitmq: publish to topic %q: %w", topic, ErrClosed)
	}
	p.calls.RLock()
	defer p.calls.RUnlock()
	if p.closing.Load() {
		return fmt.Errorf("rabbitmq: publish to topic %q: %w", topic, ErrClosed)
	}
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.config.Timeout)
	defer cancel()
	// amqp091 gives no way to bound a write, so it is left behind if it is stuck. It ends
	// with the connection at the latest.
	done := make(chan func() error, 1)
	go func() {
		result := func() error { return fmt.Errorf("rabbitmq: publish to topic %q: %w", topic, errExited) }
		defer func() {
			if r := recover(); r != nil { // the marshaler's panic is the caller's
				result = func() error { panic(r) }
			}
			done <- result
		}()
		err := p.publish(ctx, topic, messages)
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
		return fmt.Errorf("rabbitmq: publish to topic %q: %w: nothing can be written for %v",
			topic, ErrUnconfirmed, p.config.Timeout)
	}
}

func (p *Publisher) publish(ctx context.Context, topic string, messages []*message.Message) error {
	ch, err := p.channels.take(ctx)
	if err != nil {
		return fmt.Errorf("rabbitmq: publish to topic %q: %w", topic, err)
	}
	settled := false
	defer func() { p.channels.give(ch, settled) }()
	exchange := p.broker.Exchange.GenerateName(topic)
	if err := p.declare(ch, topic, exchange); err != nil {
		return fmt.Errorf("rabbitmq: publish to topic %q: declare exchange %q: %w", topic, exchange, err)
	}
	c := &call{
		ctx: ctx, channel: ch, window: p.config.Window, timeout: p.config.Timeout,
		topic: topic, exchange: exchange, key: p.broker.Publish.GenerateRoutingKey(topic),
		mandatory: !p.config.AllowUnroutable, marshaler: p.broker.Marshaler,
		messages: messages, items: make([]item, len(messages)),
	}
	c.run()
	if c.missing(exchange) {
		p.forget(topic)
	}
	settled = c.done()
	return c.result()
}

// declare makes sure once per connection that the exchange is there.
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
		return fmt.Errorf("rabbitmq: %w", err)
	}
	return nil
}

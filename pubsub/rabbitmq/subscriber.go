package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/remaining"
	"github.com/millrace-go/millrace/internal/steady"
)

// SubscriberConfig is how a [Subscriber] behaves. The zero value is right for most services.
type SubscriberConfig struct {
	// Logger gets lines about lost connections, queues and acks. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// InFlight is how many messages one subscription hands out at once. Defaults to 1, which
	// keeps the order of the queue; more do not. The subscription prefetches as many, or
	// Consume.Qos.PrefetchCount if that is higher. From a quorum queue that may have a
	// limit on deliveries, before RabbitMQ 4.3, it prefetches no more than InFlight: there a message that
	// is given back without having been handled counts as a failed delivery.
	InFlight int

	// CloseTimeout is how long a subscription that ends waits for messages in flight before
	// RabbitMQ may give them to others. Defaults to 25 seconds: what middleware.Inbox gives a
	// handler, and less than the 30 that Watermill's router waits.
	CloseTimeout time.Duration
}

func (c *SubscriberConfig) setDefaults() {
	c.Logger = steady.Apart(steady.Default(c.Logger), nil)
	if c.InFlight == 0 {
		c.InFlight = 1
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 25 * time.Second
	}
}

// Validate returns every problem of c at once.
func (c SubscriberConfig) Validate() error { return invalid("SubscriberConfig", c.problems()) }

func (c SubscriberConfig) problems() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.InFlight < 0 || c.InFlight > 65_535 {
		problem("InFlight %d is not between 1 and 65,535", c.InFlight)
	}
	if c.CloseTimeout < 0 {
		problem("CloseTimeout %v is negative", c.CloseTimeout)
	}
	return errors.Join(problems...)
}

// Subscriber receives messages, several at once with [SubscriberConfig].InFlight. It is safe for
// concurrent use.
type Subscriber struct {
	broker amqp.Config
	config SubscriberConfig
	link   *link

	mu            sync.Mutex
	closed        bool
	ends          map[*subscription]context.CancelFunc
	subscriptions sync.WaitGroup
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber connects to RabbitMQ and returns a subscriber that keeps the connection. It
// takes any Config of watermill-amqp, for instance one of [NewQueueConfig] or
// [NewPubSubConfig], and differs from watermill-amqp's subscriber in that
//
//   - it hands out [SubscriberConfig].InFlight messages at once instead of one;
//   - a subscription that ends waits for its messages in flight, instead of having RabbitMQ
//     give them to others while handlers still work on them;
//   - it requeues a message that the Marshaler refuses after a second, not at once;
//   - it hands out nothing when a queue is deleted or a channel lost, where watermill-amqp's
//     hands out an empty message;
//   - it refuses a stream (x-queue-type), from which RabbitMQ redelivers nothing;
//   - Marshaler defaults to [Marshaler].
func NewSubscriber(broker amqp.Config, config SubscriberConfig) (*Subscriber, error) {
	broker = withDefaults(broker)
	if err := errors.Join(config.problems(), subscribable(broker)); err != nil {
		return nil, invalid("Config", err)
	}
	config.setDefaults()
	l, err := newLink(broker.Connection, config.Logger)
	if err != nil {
		return nil, errorf("%w", err)
	}
	return &Subscriber{
		broker: broker, config: config, link: l, ends: map[*subscription]context.CancelFunc{},
	}, nil
}

// SubscribeInitialize declares the exchange and the queue of topic and binds them, so that
// RabbitMQ keeps what is published from now on for this subscriber.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	session, err := s.link.current()
	if err != nil {
		return errorf("initialize topic %q: %w", topic, err)
	}
	ch, err := session.Channel()
	if err != nil {
		return errorf("initialize topic %q: open a channel: %w", topic, session.lossIn(err))
	}
	defer ch.Close() //nolint:errcheck // for a panic in the TopologyBuilder; else it is closed already
	if err := errors.Join(declareQueue(ch, s.broker, topic, s.broker.Queue.GenerateName(topic), s.config.Logger), ch.Close()); err != nil {
		return errorf("initialize: %w", session.lossIn(err))
	}
	return nil
}

// Subscribe declares the queue of topic as [Subscriber.SubscribeInitialize] does and hands out its
// messages. Each must be acked or nacked; until then it is in flight, even if the connection is
// lost meanwhile: then RabbitMQ redelivers it, but this subscription still hands out no more than
// InFlight at once. After a loss it reconnects by itself.
//
// A nack counts towards a quorum queue's limit on deliveries: the subscription sends it as a
// basic.reject. It gives back by a basic.nack, which from RabbitMQ 4.3 on does not count, messages
// that were not handled when it ended, and those nacked after their context was cancelled.
//
// The subscription ends when ctx is done or the subscriber is closed. It cancels the contexts of
// its messages, waits for those in flight, for CloseTimeout at most, and then closes its channel.
// Only then does a router close the publisher of its handler.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	session, err := s.link.current()
	if err != nil {
		return nil, errorf("subscribe to topic %q: %w", topic, err)
	}
	sub := newSubscription(s, topic)
	c, err := sub.consume(session)
	if err != nil {
		return nil, errorf("subscribe: %w", session.lossIn(err))
	}
	remaining.Tell(ctx, sub.left)
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		_ = c.channel.Close() // the connection is being closed
		return nil, errorf("subscribe to topic %q: %w", topic, ErrClosed)
	}
	s.ends[sub] = cancel
	s.subscriptions.Go(func() {
		sub.run(ctx, c)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ends, sub)
	})
	return sub.out, nil
}

// Close ends all subscriptions, waits for their messages in flight, for CloseTimeout at most, and
// closes the connection.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for _, end := range s.ends {
		end()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.subscriptions.Wait()
		close(ended)
	}()
	late := time.NewTimer(max(s.config.CloseTimeout, s.config.CloseTimeout+farewell)) // the sum may be too large
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C: // RabbitMQ does not answer
		s.link.sever()
	}
	if !first {
		return nil
	}
	if err := s.link.close(); err != nil {
		return errorf("%w", err)
	}
	return nil
}

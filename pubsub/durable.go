package pubsub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// Mode says when a message is stored.
type Mode int

// When Durable stores a message.
const (
	// StoreOnFailure delivers a message straight through. If its handler fails, Durable stores
	// and acks it, and retries it from the table: its source need not redeliver it.
	StoreOnFailure Mode = iota
	// StoreFirst stores each message, acks it, and delivers it from the table. The broker then
	// shows no backlog: a Store without Observers logs that once for each consumer.
	StoreFirst
)

// Durable makes the inbox's table a queue between a subscriber and its handler. It retries a
// message that fails from the table, after growing pauses, and parks it when it fails too often.
// A message waits in the table for its predecessor, and one without a key for an operator. None
// of them stops the messages behind it.
//
//	sub, err := pubsub.Durable{Store: store, Consumer: "billing"}.Decorate(sub)
//
// Stored messages come with the UUID, metadata and payload that they arrived with, and pass all
// middlewares of the router. Several processes may share the work. Retry and PoisonQueue are not
// needed beside it.
type Durable struct {
	// Store keeps the messages. Required.
	Store *inbox.Store

	// Mode says when a message is stored. Defaults to StoreOnFailure, which writes nothing for
	// a message that succeeds.
	Mode Mode

	// Consumer is the consumer whose messages these are: the name of the handler, or the Consumer
	// of middleware.Inbox. The subscriber must deliver stored messages as soon as it subscribes, but
	// would learn its handler's name only from the first new one. A process subscribes a consumer
	// to one topic at a time: Subscribe refuses another. Required, unless ConsumerOf is set.
	Consumer string

	// ConsumerOf gives the Consumer for each topic, for one Durable that decorates all
	// subscribers of a router. Subscribe calls it; a panic in it reaches the caller of Subscribe.
	// It knows the topic alone: where two handlers have one topic, decorate the subscriber of each,
	// with its own Consumer. Do so for a handler that returns messages, too: behind a router's
	// decorator, a stored message does not know where they go.
	ConsumerOf func(topic string) string

	// Epoch is that of middleware.Inbox. Defaults to 0.
	Epoch int

	// Key and Fingerprint are those of middleware.Inbox. Key defaults to the message's UUID. If
	// one of them, OrderKey or NotBefore fails or panics for a message, Durable keeps the message
	// for an operator.
	Key         inbox.Key
	Fingerprint func(*message.Message) ([]byte, error)

	// OrderKey gives each message's order key. Messages with the same key are delivered one at a
	// time, in the order of their arrival; one that fails holds back only its own key. It needs
	// StoreFirst. docs/durable.md names the exceptions. Defaults to no order.
	OrderKey func(*message.Message) (string, error)

	// OnParked says what happens to the messages of a key behind one that was parked or failed terminally.
	// Defaults to inbox.HoldKey.
	OnParked inbox.OnParked

	// OnPark is called in the transaction that parks a message of the queue, or fails it
	// terminally. If it publishes through an outbox with the context of msg, to a dead-letter
	// topic for instance, the message is sent after that commit. If it fails or panics, the error
	// is logged and the message parked all the same.
	OnPark func(msg *message.Message, reason string) error

	// Classify may mark the error of a handler with inbox.Terminal or inbox.RetryAfter. If it
	// returns nil or panics, the error stays as it was. An error that it leaves unmarked is
	// terminal if Watermill's package cqrs says that no handler knows the event type, or that it
	// cannot decode the payload.
	Classify func(error) error

	// NotBefore says when the handler may have a message at the earliest, by the clock of the
	// process: Durable stores a message whose time has not come. With an OrderKey, later messages of
	// its key wait for it. Defaults to no such time.
	NotBefore func(*message.Message) time.Time

	// Redelivered reports whether a message was delivered before: Durable stores such a message
	// before the handler runs, so that the attempt counts even if it ends the process. If it
	// panics, the message counts as delivered before. Defaults to the marks that pubsub/rabbitmq
	// and watermill-amqp v3 set.
	Redelivered func(*message.Message) bool

	// Concurrency bounds how many stored messages the handler has at once. Defaults to 10; at most 10,000.
	Concurrency int

	// Prefetch bounds how many messages are taken from the table at once while the handler is
	// fast; while it is slow, Concurrency does. Defaults to 10 times Concurrency; at most 10,000.
	Prefetch int

	// Lease is how long other processes leave a stored message alone that this one has taken; it
	// is renewed while the handler runs. Defaults to 60 seconds: long enough that a busy process
	// keeps it, short enough that the messages of a process that died are not late by much.
	Lease time.Duration

	// Poll is how often Durable looks at the table when nothing announces a due message.
	// Defaults to 1 second.
	Poll time.Duration

	// MaxAttempts is how often a stored message may fail before it is parked. Defaults to 10.
	MaxAttempts int

	// MinBackoff and MaxBackoff bound the pause after a failure, which grows with each failure,
	// with jitter. Default to 1 second and 5 minutes.
	MinBackoff time.Duration
	MaxBackoff time.Duration
}

// Decorate returns a subscriber that delivers the messages of sub and the stored ones of the
// consumer. It is also a message.SubscriberDecorator for routers.
func (d Durable) Decorate(sub message.Subscriber) (message.Subscriber, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	if d.Concurrency == 0 {
		d.Concurrency = 10
	}
	if d.Prefetch == 0 {
		d.Prefetch = min(10*d.Concurrency, mostTaken)
	}
	if d.Poll == 0 {
		d.Poll = time.Second
	}
	if d.Redelivered == nil {
		d.Redelivered = inbox.Internals{}.Redelivered
	}
	ended, end := context.WithCancel(context.Background())
	return &durable{Durable: d, upstream: sub, ended: ended, end: end, queues: make(map[string]*inbox.Queue)}, nil
}

// mostTaken bounds how many messages are taken at once: a statement names each of them, and SQLite takes 32,766 arguments.
const mostTaken = 10_000

func (d Durable) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if d.Store == nil {
		problem("a Store is required")
	}
	name := d.Consumer
	if d.ConsumerOf != nil {
		if name != "" {
			problem("set either Consumer or ConsumerOf")
		}
		name = "named by its topic"
	}
	if err := d.queue(name).Validate(); err != nil {
		problems = append(problems, err)
	}
	if d.Mode < StoreOnFailure || d.Mode > StoreFirst {
		problem("Mode %d is neither StoreOnFailure nor StoreFirst", d.Mode)
	}
	if d.OrderKey != nil && d.Mode != StoreFirst {
		problem("OrderKey needs Mode StoreFirst: messages that go straight through have no order")
	}
	atMost := func(name string, n int) {
		if n < 0 {
			problem("%s %d is negative", name, n)
		} else if n > mostTaken {
			problem("%s %d is above %d", name, n, mostTaken)
		}
	}
	atMost("Concurrency", d.Concurrency)
	atMost("Prefetch", d.Prefetch)
	if d.Poll < 0 {
		problem("Poll %v is negative", d.Poll)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("pubsub.Durable: invalid settings: %w", err)
	}
	return nil
}

func (d Durable) queue(consumer string) inbox.QueueConfig {
	return inbox.QueueConfig{
		Consumer: consumer, Epoch: d.Epoch, Key: d.Key, Fingerprint: d.Fingerprint,
		Lease: d.Lease, MaxAttempts: d.MaxAttempts, MinBackoff: d.MinBackoff, MaxBackoff: d.MaxBackoff,
		OrderKey: d.OrderKey, OnParked: d.OnParked, OnPark: d.OnPark, NotBefore: d.NotBefore, Classify: d.Classify,
		StoreFirst: d.Mode == StoreFirst,
	}
}

// durable is the subscriber that Decorate returns.
type durable struct {
	Durable
	upstream message.Subscriber

	ended context.Context //nolint:containedctx // of all subscriptions
	end   context.CancelFunc
	open  sync.WaitGroup // of senders to the subscriptions' channels

	mu     sync.Mutex
	queues map[string]*inbox.Queue
}

// queueOf returns the queue of a consumer, which all its subscriptions share.
func (d *durable) queueOf(consumer string) (*inbox.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.queues[consumer]; q != nil {
		return q, nil
	}
	q, err := d.Store.Queue(d.queue(consumer))
	if err != nil {
		return nil, err
	}
	d.queues[consumer] = q
	return q, nil
}

// Subscribe delivers the messages of upstream and the stored ones.
func (d *durable) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	consumer := d.Consumer
	if d.ConsumerOf != nil {
		consumer = d.ConsumerOf(topic)
	}
	queue, err := d.queueOf(consumer)
	var leave func()
	if err == nil {
		leave, err = queue.Subscribed(topic)
	}
	if err != nil {
		return nil, fmt.Errorf("pubsub.Durable: subscribe consumer %q to topic %q: %w", consumer, topic, err)
	}
	in, err := d.upstream.Subscribe(ctx, topic)
	if err != nil {
		leave()
		return nil, err // of another package, in its words
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.ended, cancel) //nolint:contextcheck // it ends with either
	out := make(chan *message.Message)
	var senders, answers sync.WaitGroup
	w := newWorker(d.Durable, queue, topic, out, &answers)
	i := &intake{Durable: d.Durable, queue: queue, topic: topic, in: in, out: out, looked: w.looked, answers: &answers}
	senders.Go(func() {
		defer cancel()                             // when upstream ends, the worker ends too
		for !apart(queue, func() { i.run(ctx) }) { //nolint:revive // it goes on with the next message
		}
	})
	senders.Go(func() { w.run(ctx) })
	d.open.Go(func() {
		defer close(out)
		defer leave()
		defer stop() // or else d would hold ctx until it is closed
		senders.Wait()
		go func() {
			answers.Wait()
			close(w.acked)
		}()
		waitFor(w.recorded, lastAnswers)
	})
	return out, nil
}

// SubscribeInitialize passes on to upstream, if that is a message.SubscribeInitializer.
func (d *durable) SubscribeInitialize(topic string) error {
	if upstream, ok := d.upstream.(message.SubscribeInitializer); ok {
		return upstream.SubscribeInitialize(topic)
	}
	return nil
}

// String returns the name that a router would show for upstream: the version gate tells by it how
// many messages are in flight.
func (d *durable) String() string {
	if named, ok := d.upstream.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", d.upstream), "*")
}

// Close closes upstream and ends every subscription. It waits a moment for handlers that end with
// their messages' contexts; it records the answers of the others later. [inbox.Store.Close] waits for those.
func (d *durable) Close() error {
	d.end()
	err := d.upstream.Close()
	d.open.Wait()
	return err
}

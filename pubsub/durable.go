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
	// StoreOnFailure delivers a message straight through. One whose handler fails is stored
	// and acked, and tried again from the table: its source need not redeliver it.
	StoreOnFailure Mode = iota
	// StoreFirst stores each message, acks it, and delivers it from the table. The broker shows no backlog
	// then: a Store without Observers says so once for each consumer.
	StoreFirst
)

// Durable makes the inbox's table a queue between a subscriber and its handler: a message
// that fails is tried again from there, after pauses that grow, and parked when it fails
// too often; one that has to wait for its predecessor waits there, and one without a key for an
// operator. It stops nobody.
//
//	sub, err := pubsub.Durable{Store: store, Consumer: "billing"}.Decorate(sub)
//
// Stored messages come with the UUID, the metadata and the payload they had, through all
// middlewares of the router. Several processes may share the work. Retry and PoisonQueue
// are not needed beside it.
type Durable struct {
	// Store keeps the messages. Required.
	Store *inbox.Store

	// Mode says when a message is stored. Defaults to StoreOnFailure: nothing is written for
	// a message that succeeds.
	Mode Mode

	// Consumer is whose messages these are: the name of the handler, or what
	// middleware.Inbox has as Consumer. A subscriber learns the name of its handler only from
	// the first message, and stored ones must be delivered without it. Required, unless
	// ConsumerOf is set.
	Consumer string

	// ConsumerOf gives the Consumer for each topic, for one Durable that decorates all
	// subscribers of a router. It is called by Subscribe, whose caller has its panic. A handler that returns messages needs its own subscriber
	// decorated instead: by a router's decorator a stored message does not know where they go.
	ConsumerOf func(topic string) string

	// Epoch is that of middleware.Inbox. Defaults to 0.
	Epoch int

	// Key and Fingerprint are those of middleware.Inbox. Key defaults to the message's UUID. A message
	// of which one of them fails or panics is kept for an operator, and so is one of OrderKey's and of
	// NotBefore's.
	Key         inbox.Key
	Fingerprint func(*message.Message) ([]byte, error)

	// OrderKey says which messages are delivered in the order of their arrival, one at a time:
	// those with one key. A message that fails holds back its own key only. It needs
	// StoreFirst. Defaults to no order.
	OrderKey func(*message.Message) (string, error)

	// OnParked says what happens to the messages of a key behind one that was parked or failed terminally.
	// Defaults to inbox.HoldKey.
	OnParked inbox.OnParked

	// OnPark is called in the transaction that parks a message of the queue, or fails it
	// terminally. What it publishes through an outbox with the context of msg goes out if
	// that is committed, to a dead-letter topic for instance. Where it fails, or panics, the message
	// is parked all the same, and the error is logged.
	OnPark func(msg *message.Message, reason string) error

	// Classify may mark the error of a handler with inbox.Terminal or inbox.RetryAfter. Where it
	// returns nil, or panics, the error stays what it was. What it leaves unmarked is terminal where
	// Watermill's package cqrs says that no handler knows the event type, or cannot decode the payload.
	Classify func(error) error

	// NotBefore says when the handler may have a message at the earliest, by the clock of the
	// process: one whose time has not come is stored. Defaults to no such time.
	NotBefore func(*message.Message) time.Time

	// Redelivered says that a message was delivered before: such a one is stored before it
	// runs, so that one that ends the process is counted. A message of which it panics counts as
	// delivered before. Defaults to the marks that
	// pubsub/rabbitmq and watermill-amqp v3 set.
	Redelivered func(*message.Message) bool

	// Concurrency bounds how many stored messages are with the handler at once. Defaults to 10.
	Concurrency int

	// Prefetch bounds how many are taken from the table at once where the handler is fast;
	// where it is slow, no more than Concurrency. Defaults to 10 times Concurrency.
	Prefetch int

	// Lease is how long a stored message is out of the reach of other processes; it is
	// renewed while the handler runs. Defaults to 60 seconds: long enough that a busy process
	// keeps it, short enough that the messages of one that died are not late by much.
	Lease time.Duration

	// Poll is how often the table is asked where nothing tells that a message is due.
	// Defaults to 1 second.
	Poll time.Duration

	// MaxAttempts is how often a stored message may fail before it is parked. Defaults to 10.
	MaxAttempts int

	// MinBackoff and MaxBackoff bound the pause after a failure, which grows with each and is
	// never twice the same. Default to 1 second and 5 minutes.
	MinBackoff time.Duration
	MaxBackoff time.Duration
}

// Decorate returns sub with the stored messages of the consumer. It is a
// message.SubscriberDecorator for routers, too.
func (d Durable) Decorate(sub message.Subscriber) (message.Subscriber, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	if d.Concurrency == 0 {
		d.Concurrency = 10
	}
	if d.Prefetch == 0 {
		d.Prefetch = 10 * d.Concurrency
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
		problem("Mode %d is none of the constants", d.Mode)
	}
	if d.OrderKey != nil && d.Mode != StoreFirst {
		problem("OrderKey needs Mode StoreFirst: what goes straight through is in no order")
	}
	if d.Concurrency < 0 {
		problem("Concurrency %d is negative", d.Concurrency)
	}
	if d.Prefetch < 0 {
		problem("Prefetch %d is negative", d.Prefetch)
	}
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

// durable is a subscriber with stored messages.
type durable struct {
	Durable
	upstream message.Subscriber

	ended context.Context //nolint:containedctx // of all subscriptions
	end   context.CancelFunc
	open  sync.WaitGroup // of senders to the subscriptions' channels

	mu     sync.Mutex
	queues map[string]*inbox.Queue
}

// queueOf returns the queue of a consumer, which all subscriptions share.
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

// Subscribe delivers what upstream does, and what is stored.
func (d *durable) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	consumer := d.Consumer
	if d.ConsumerOf != nil {
		consumer = d.ConsumerOf(topic)
	}
	queue, err := d.queueOf(consumer)
	if err != nil {
		return nil, fmt.Errorf("pubsub.Durable: topic %q: %w", topic, err)
	}
	in, err := d.upstream.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(d.ended, cancel) //nolint:contextcheck // it ends with either
	out := make(chan *message.Message)
	var senders, answers sync.WaitGroup
	i := &intake{Durable: d.Durable, queue: queue, topic: topic, in: in, out: out, answers: &answers}
	w := newWorker(d.Durable, queue, topic, out, &answers)
	senders.Go(func() {
		defer cancel()                             // with upstream everything ends
		for !apart(queue, func() { i.run(ctx) }) { //nolint:revive // it goes on with the next message
		}
	})
	senders.Go(func() { w.run(ctx) })
	d.open.Go(func() {
		defer close(out)
		senders.Wait()
		go func() {
			answers.Wait()
			close(w.acked)
		}()
		w.waitForAnswers()
	})
	return out, nil
}

// SubscribeInitialize has upstream make what it needs for topic, if it can.
func (d *durable) SubscribeInitialize(topic string) error {
	if upstream, ok := d.upstream.(message.SubscribeInitializer); ok {
		return upstream.SubscribeInitialize(topic)
	}
	return nil
}

// String is what a router calls upstream: from it the version gate knows how many messages
// are in flight.
func (d *durable) String() string {
	if named, ok := d.upstream.(fmt.Stringer); ok {
		return named.String()
	}
	return strings.TrimLeft(fmt.Sprintf("%T", d.upstream), "*")
}

// Close closes upstream, and ends every subscription. It waits a moment for handlers that
// end with their messages' contexts; the answer of another one is still written down later.
func (d *durable) Close() error {
	d.end()
	err := d.upstream.Close()
	d.open.Wait()
	return err
}

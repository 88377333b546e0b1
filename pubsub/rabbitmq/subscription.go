package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// breather is the pause before a retry.
const breather = time.Second

// subscription hands out the messages of one queue, through one consumer after the other.
type subscription struct {
	*Subscriber
	topic    string
	queue    string
	out      chan *message.Message
	inFlight chan struct{} // holds one entry per message in flight
	held     atomic.Int64  // messages that came, and nobody has received yet
	refused  atomic.Int64  // when the marshaler refused one, in Unix milliseconds, and nobody has received one since
	retired  sync.WaitGroup
	givenUp  chan struct{} // closed when the subscription stops waiting for messages in flight
}

var errCancelled = errors.New("its queue was deleted or has lost its node, or RabbitMQ waited for an ack for too long")

// consumer is a channel on which deliveries come.
type consumer struct {
	channel    *amqp091.Channel
	tag        string
	deliveries <-chan amqp091.Delivery
	handling   sync.WaitGroup
	cancelled  chan struct{} // closed when it gets no more deliveries
}

func newSubscription(s *Subscriber, topic string) *subscription {
	return &subscription{
		Subscriber: s, topic: topic, queue: s.broker.Queue.GenerateName(topic), out: make(chan *message.Message),
		inFlight: make(chan struct{}, s.config.InFlight), givenUp: make(chan struct{}),
	}
}

func (s *subscription) consume(from *session) (*consumer, error) {
	ch, err := from.Channel()
	if err != nil {
		return nil, fmt.Errorf("topic %q: open a channel: %w", s.topic, err)
	}
	consumes := false
	defer func() {
		if !consumes { // also if the TopologyBuilder panics
			_ = ch.Close() // err says more
		}
	}()
	c, err := s.consumeOn(from, ch)
	consumes = err == nil
	return c, err
}

func (s *subscription) consumeOn(from *session, ch *amqp091.Channel) (*consumer, error) {
	if err := declareQueue(ch, s.broker, s.topic, s.queue, s.config.Logger); err != nil {
		return nil, err
	}
	how := s.broker.Consume
	prefetch := s.prefetch(from)
	if err := ch.Qos(prefetch, how.Qos.PrefetchSize, how.Qos.Global); err != nil {
		return nil, fmt.Errorf("topic %q: prefetch %d: %w", s.topic, prefetch, err)
	}
	tag := how.Consumer
	if tag == "" {
		tag = "millrace-" + watermill.NewShortUUID()
	}
	cancels, closes := ch.NotifyCancel(make(chan string, 1)), ch.NotifyClose(make(chan *amqp091.Error, 1))
	deliveries, err := ch.Consume(s.queue, tag, false,
		how.Exclusive, how.NoLocal, how.NoWait, how.Arguments)
	if err != nil {
		return nil, fmt.Errorf("topic %q: consume: %w", s.topic, err)
	}
	go s.tellEnd(from, cancels, closes)
	return &consumer{channel: ch, tag: tag, deliveries: deliveries, cancelled: make(chan struct{})}, nil
}

// tellEnd logs why RabbitMQ ends a consumer. The loss of the connection has a line of its own.
func (s *subscription) tellEnd(from *session, cancels <-chan string, closes <-chan *amqp091.Error) {
	for range cancels {
		s.config.Logger.Error("RabbitMQ cancelled a subscription, subscribing again", errCancelled, s.fields(nil))
	}
	if reason := <-closes; reason != nil && !from.IsClosed() {
		s.config.Logger.Error("RabbitMQ closed the channel of a subscription, subscribing again", reason, s.fields(nil))
	}
}

// prefetch is how many messages the subscription has at once. When it ends it gives back those
// that it did not hand out, so where that counts as a failed delivery it prefetches none of them.
func (s *subscription) prefetch(from *session) int {
	if limited(s.broker.Queue.Arguments) && from.countsReturns() {
		return s.config.InFlight
	}
	return max(s.broker.Consume.Qos.PrefetchCount, s.config.InFlight)
}

// left returns how many messages nobody has received yet: they wait in the queue, or are held here, such as one that
// the marshaler refuses. It asks over the connection that the messages come by.
func (s *subscription) left() (left int, err error) {
	session, err := s.link.current()
	if err != nil {
		return 0, err
	}
	ch, err := session.Channel()
	if err != nil {
		return 0, errorf("open a channel: %w", session.lossIn(err))
	}
	defer ch.Close() //nolint:errcheck // what RabbitMQ has answered is known
	// What was on its way at the first answer comes before the second.
	for range 2 {
		q, err := ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
		if err != nil {
			return 0, errorf("ask for the messages of queue %q: %w", s.queue, session.lossIn(err))
		}
		if left = q.Messages + int(s.held.Load()); left > 0 {
			return left, nil
		}
		if q.Consumers == 0 {
			return 0, errorf("queue %q names no consumer, although it has this one: it may have no leader, and then it counts nothing", s.queue)
		}
	}
	if time.Since(time.UnixMilli(s.refused.Load())) < 2*breather {
		left = 1 // it is on its way back
	}
	return left, nil
}

// run hands out messages until ctx is done.
func (s *subscription) run(ctx context.Context, c *consumer) {
	defer close(s.out)
	for c != nil {
		s.serve(ctx, c)
		s.retire(c)
		c = s.renew(ctx)
	}
	settled := make(chan struct{})
	go func() {
		s.retired.Wait()
		close(settled)
	}()
	late := time.NewTimer(s.config.CloseTimeout)
	defer late.Stop()
	select {
	case <-settled:
	case <-late.C:
		close(s.givenUp)
		<-settled
	}
}

// serve hands out c's messages until ctx is done or c gets no more.
func (s *subscription) serve(ctx context.Context, c *consumer) {
	for {
		select {
		case s.inFlight <- struct{}{}:
		case <-ctx.Done():
			return
		}
		select {
		case d, open := <-c.deliveries:
			if !open {
				<-s.inFlight
				return
			}
			s.held.Add(1)
			c.handling.Go(func() {
				defer func() { <-s.inFlight }() // the marshaler may end the goroutine
				s.handle(ctx, c, d)
			})
		case <-ctx.Done():
			<-s.inFlight
			return
		}
	}
}

// retire closes c once its messages in flight are answered. Before that it requeues those that were
// not handed out, by a nack: RabbitMQ 4.3 counts a reject, and the end of the channel, as a failed
// delivery. It cancels the consumer first, which would only get them again; also one that RabbitMQ has
// cancelled: RabbitMQ 4.3 gives it messages again once it has answered those that it had for too long.
func (s *subscription) retire(c *consumer) {
	s.retired.Go(func() {
		if err := c.channel.Cancel(c.tag, false); err == nil {
			for d := range c.deliveries {
				_ = d.Nack(false, true) // if it fails, the end of the channel requeues it
			}
		}
		close(c.cancelled)
		c.handling.Wait()
		_ = c.channel.Close() // it may have been lost
	})
}

// renew returns the next consumer, or nil when ctx is done or the subscriber is closed.
func (s *subscription) renew(ctx context.Context) *consumer {
	for ctx.Err() == nil {
		from, err := s.link.await(ctx)
		if err != nil {
			return nil
		}
		var c *consumer
		err = outlive("the topology", func() (err error) { c, err = s.consume(from); return err })
		if err == nil {
			return c
		}
		s.config.Logger.Error("Cannot consume, trying again", err, s.fields(nil))
		s.pause(ctx)
	}
	return nil
}

// handle hands d out and passes the answer on to RabbitMQ.
func (s *subscription) handle(ctx context.Context, c *consumer, d amqp091.Delivery) {
	requeue, subscribed := !s.broker.Consume.NoRequeueOnNack, ctx
	received := false
	defer func() { // also if the marshaler ends the goroutine
		if !received {
			s.held.Add(-1)
		}
	}()
	msg := s.read(ctx, d)
	if msg == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg.SetContext(ctx)
	select {
	case s.out <- msg:
		received = true
		s.held.Add(-1)
		s.refused.Store(0)
	case <-ctx.Done():
		s.told(c.giveBack(d), msg)
		return
	}
	select {
	case <-msg.Acked():
		s.told(d.Ack(false), msg)
	case <-msg.Nacked():
		if subscribed.Err() != nil { // a cancelled message has not failed
			s.told(c.giveBack(d), msg)
		} else {
			s.told(d.Reject(requeue), msg)
		}
	case <-s.givenUp:
		s.config.Logger.Info("A message is still in flight, RabbitMQ delivers it again", s.fields(msg))
	}
}

// read makes a message from d. If the marshaler refuses, it requeues d after a pause and returns
// nil.
func (s *subscription) read(ctx context.Context, d amqp091.Delivery) (msg *message.Message) {
	err := errExited
	defer func() {
		if r := recover(); r != nil {
			err = panicked("the marshaler", r)
		}
		if err != nil {
			msg = nil
			s.config.Logger.Error("Cannot unmarshal a message, nacking it", err, s.fields(nil))
			s.pause(ctx)
			requeue := !s.broker.Consume.NoRequeueOnNack
			if requeue {
				s.refused.Store(time.Now().UnixMilli())
			}
			s.told(d.Reject(requeue), nil)
		}
	}()
	if msg, err = s.broker.Marshaler.Unmarshal(d); err == nil && msg == nil {
		err = errors.New("the marshaler returned neither a message nor an error")
	}
	return msg
}

// giveBack requeues d as not handled, once c can no longer get it again: from RabbitMQ 4.3 on a
// nack, unlike a reject, does not count as a failed delivery.
func (c *consumer) giveBack(d amqp091.Delivery) error {
	<-c.cancelled
	return d.Nack(false, true)
}

// told logs an answer that did not reach RabbitMQ.
func (s *subscription) told(err error, msg *message.Message) {
	if err != nil {
		fields := s.fields(msg).Add(watermill.LogFields{"error": err})
		s.config.Logger.Info("The channel was lost before the ack, RabbitMQ delivers the message again", fields)
	}
}

func (s *subscription) fields(msg *message.Message) watermill.LogFields {
	fields := watermill.LogFields{"topic": s.topic, "amqp_queue_name": s.queue}
	if msg != nil {
		fields["message_uuid"] = msg.UUID
	}
	return fields
}

func (s *subscription) pause(ctx context.Context) {
	over := time.NewTimer(breather)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
	}
}

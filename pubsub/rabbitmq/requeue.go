package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/outbox"
)

// RequeueConfig says which dead letters Requeue sends back, and where to. The zero value sends all
// of them to the queues in which they died.
type RequeueConfig struct {
	// Replay names the replay in the field inbox.ReplayField of each message. Defaults to
	// "dead letters of " and the name of the queue.
	Replay string

	// Plain sends messages without inbox.ReplayField, as if for the first time: for consumers whose
	// Inbox.OnReplay refuses replayed messages, or suppresses what they would send, although a
	// letter that was never handled has sent nothing. Defaults to false: an inbox retries a stored
	// failure only for a marked message.
	Plain bool

	// Wanted picks letters; the others stay in the queue. Defaults to all.
	Wanted func(letter *message.Message) bool

	// Payload returns the payload to send, for letters that need correction. Defaults to the
	// letter's own.
	Payload func(letter *message.Message) (message.Payload, error)

	// To returns the queue to send a letter to. Defaults to the one in which it died, by its header
	// x-death, or to that of the topic from which Watermill's PoisonQueue took it.
	To func(letter *message.Message) (queue string, err error)

	// Limit is how many letters Requeue looks at, at most. Defaults to as many as there are.
	Limit int

	// PerSecond is how many letters Requeue sends per second, at most. Defaults to no limit.
	PerSecond int

	// DryRun counts the letters that Requeue would send, and sends none.
	DryRun bool
}

// Validate returns every problem of c at once.
func (c RequeueConfig) Validate() error { return invalid("RequeueConfig", c.problems()) }

func (c RequeueConfig) problems() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.Limit < 0 {
		problem("Limit %d is negative", c.Limit)
	}
	if c.PerSecond < 0 {
		problem("PerSecond %d is negative", c.PerSecond)
	}
	return errors.Join(problems...)
}

// Requeued says what Requeue did with the dead letters.
type Requeued struct {
	Sent     int // RabbitMQ confirmed them in their new queue, and Requeue acked them in the old one
	Unwanted int // left in the queue by Wanted
	Failed   int // left in the queue because they could not be sent; the error says why
}

// Requeue sends the dead letters of a queue back to the queues in which they died, in their order.
// It sends them straight to the queue, past the exchange, so that no other consumer gets them
// again. It looks once at each letter that is there when it is called, and returns when RabbitMQ
// has confirmed those it sent.
//
// Requeue acks a letter when RabbitMQ has confirmed it in its new queue. So it sends each letter at
// least once, and twice if the process dies or the connection is lost in between; an inbox
// recognises the copy. Letters that could not be sent keep their place. After an error or a
// restart, call Requeue again for the rest. Several calls may share the work.
//
// A message keeps its UUID, its payload, its headers with their types, and its properties. Requeue
// adds the fields inbox.ReplayField and inbox.ReplayAttemptField, and leaves out what would
// describe the failure or mislead RabbitMQ:
//
//   - x-death becomes [DeathsField], as text: RabbitMQ before 4.0 would read x-death, and may drop a
//     message that it sees a second time;
//   - the other headers that RabbitMQ itself sets, such as x-delivery-count, and the fields of
//     Watermill's PoisonQueue;
//   - CC, by which other queues would get the message too;
//   - the property user-id, which RabbitMQ accepts only from that user.
//
// broker is the Config of the messages' consumers.
func Requeue(ctx context.Context, broker amqp.Config, queue string, config RequeueConfig) (Requeued, error) {
	broker = withDefaults(broker)
	if err := errors.Join(config.problems(), subscribable(broker), queueFits(queue)); err != nil {
		return Requeued{}, errorf("requeue: invalid Config: %w", err)
	}
	if config.Replay == "" {
		config.Replay = "dead letters of " + queue
	}
	l, err := newLink(broker.Connection, watermill.NopLogger{})
	if err != nil {
		return Requeued{}, errorf("requeue the letters of queue %q: %w", queue, err)
	}
	r := &requeue{config: config, broker: broker, queue: queue, began: time.Now()}
	r.publisher = newPublisher(l, toQueues(broker), publisherDefaults())
	if err := r.call(ctx); err != nil {
		return r.done, errorf("requeue the letters of queue %q: %w", queue, err)
	}
	return r.done, nil
}

func publisherDefaults() (c PublisherConfig) {
	c.setDefaults()
	return c
}

// toQueues returns broker changed so that a topic is the name of a queue, and messages are letters.
func toQueues(broker amqp.Config) amqp.Config {
	broker.Marshaler = letterMarshaler{}
	broker.Exchange.GenerateName = func(string) string { return "" }
	broker.Publish.GenerateRoutingKey = func(queue string) string { return queue }
	return broker
}

// requeue is one call of Requeue.
type requeue struct {
	config    RequeueConfig
	broker    amqp.Config
	queue     string
	publisher *Publisher
	channel   *amqp091.Channel
	began     time.Time
	done      Requeued
	failures  []error
}

// mostFailures bounds how many letters' errors Requeue returns.
const mostFailures = 10

// requeueBatch is how many letters wait for their confirms together.
const requeueBatch = 100

// call runs r and closes the connection, also after a panic: then RabbitMQ puts the letters back
// that were not acked.
func (r *requeue) call(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.publisher.Close()) }()
	return r.run(ctx)
}

func (r *requeue) run(ctx context.Context) error {
	session, err := r.publisher.source.current()
	if err != nil {
		return err
	}
	if r.channel, err = session.Channel(); err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	// During an alarm RabbitMQ reads nothing from a connection that has published, and no call on it ends. What is
	// being published has as long to be confirmed as ever, or it would be sent twice.
	silent := time.AfterFunc(time.Hour, session.sever)
	silent.Stop()
	defer silent.Stop()
	end := func() { silent.Reset(r.publisher.config.Timeout) }
	defer context.AfterFunc(ctx, end)()
	err = r.all(ctx)
	end()
	// RabbitMQ answers when it has the acks, and puts back the letters that were not acked.
	if closed := r.channel.Close(); err == nil {
		err = closed
	}
	return errors.Join(append(r.failures, err)...)
}

// all looks at each letter that the queue has now.
func (r *requeue) all(ctx context.Context) error {
	left, err := r.count()
	looked := 0
	if left == 0 && err == nil { // a quorum queue without a leader says so too, and answers no Get
		if looked, err = r.batch(ctx, 1); looked > 0 && err == nil {
			left, err = r.count()
		}
	}
	if r.config.Limit > 0 {
		left = min(left, r.config.Limit-looked)
	}
	for left > 0 && err == nil {
		looked, err = r.batch(ctx, min(left, r.room()))
		left -= looked
		if looked == 0 {
			break
		}
	}
	return err
}

// count returns how many letters wait in the queue.
func (r *requeue) count() (int, error) {
	q, err := r.channel.QueueDeclarePassive(r.queue, true, false, false, false, nil)
	return q.Messages, err
}

// room is how many letters a batch may have, so that a batch exceeds PerSecond by a tenth at most.
func (r *requeue) room() int {
	if r.config.PerSecond == 0 {
		return requeueBatch
	}
	return max(1, min(requeueBatch, r.config.PerSecond/10))
}

// batch takes letters out of the queue and sends them. An error ends the call.
func (r *requeue) batch(ctx context.Context, limit int) (looked int, err error) {
	if err := r.wait(ctx); err != nil {
		return 0, err
	}
	var letters []*letter
	for ; looked < limit; looked++ {
		d, found, err := r.channel.Get(r.queue, false)
		if err != nil {
			return looked, err
		}
		if !found {
			break
		}
		if l := r.look(d); l != nil {
			letters = append(letters, l)
		}
	}
	for len(letters) > 0 && err == nil {
		n := 1
		for n < len(letters) && letters[n].to == letters[0].to {
			n++
		}
		err = r.send(ctx, letters[:n])
		letters = letters[n:]
	}
	return looked, err
}

// wait keeps the pace of PerSecond.
func (r *requeue) wait(ctx context.Context) error {
	if r.config.PerSecond == 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(r.done.Sent) / float64(r.config.PerSecond) * float64(time.Second))
	over := time.NewTimer(time.Until(r.began.Add(due)))
	defer over.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-over.C:
		return ctx.Err()
	}
}

// look returns the letter to send for d, or nil if d stays in the queue.
func (r *requeue) look(d amqp091.Delivery) *letter {
	msg, err := r.broker.Marshaler.Unmarshal(d)
	if err != nil {
		r.fail(d.MessageId, fmt.Errorf("unmarshal it: %w", err))
		return nil
	}
	if r.config.Wanted != nil && !r.config.Wanted(msg) {
		r.done.Unwanted++
		return nil
	}
	l := &letter{Message: msg, delivery: d}
	if r.config.To != nil {
		l.to, err = r.config.To(msg)
	} else {
		l.to, err = origin(d, msg, r.broker)
	}
	if err == nil {
		l.publishing, err = r.replayed(d, msg)
	}
	if err != nil {
		r.fail(msg.UUID, err)
		return nil
	}
	if r.config.DryRun {
		r.done.Sent++
		return nil
	}
	return l
}

// send publishes letters to the queue that they share, and acks those that RabbitMQ confirms. It
// returns an error if none can be sent; a fault of a single letter is only noted.
func (r *requeue) send(ctx context.Context, letters []*letter) (stop error) {
	messages := make([]*message.Message, len(letters))
	for i, l := range letters {
		messages[i] = l.message(ctx)
	}
	err := r.publisher.Publish(letters[0].to, messages...) //nolint:contextcheck // it has a Timeout of its own
	errs := make([]error, len(letters))
	var partial *outbox.PartialError
	switch {
	case errors.As(err, &partial):
		errs = partial.Errors
	case err != nil && len(letters) > 1:
		return err // none is known to be sent
	default:
		errs[0] = err
	}
	for i, l := range letters {
		if errs[i] != nil {
			r.fail(l.UUID, errs[i])
			if !errors.Is(errs[i], outbox.ErrPermanent) {
				stop = errors.New("the rest was not tried: call Requeue again")
			}
			continue
		}
		if err := l.delivery.Ack(false); err != nil {
			return fmt.Errorf("message %q was sent but not acked, so the next call sends it again: %w", l.UUID, err)
		}
		r.done.Sent++
	}
	return stop
}

func (r *requeue) fail(uuid string, err error) {
	r.done.Failed++
	if len(r.failures) < mostFailures {
		r.failures = append(r.failures, fmt.Errorf("message %q stays in the queue: %w", uuid, err))
	}
}

package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/outbox"
)

// call is one call of Publish on its channel. Messages before settled have their answer; the
// others before sent are on their way. RabbitMQ answers in any order.
type call struct {
	ctx           context.Context //nolint:containedctx // it lives as long as the call
	channel       *channel
	window        int
	timeout       time.Duration
	topic         string
	exchange, key string
	mandatory     bool
	marshaler     amqp.Marshaler
	messages      []*message.Message
	items         []item
	sent, settled int

	// underway has the messages on their way by message-id, by which returned is told which one
	// RabbitMQ returns. So a message without an id, or with that of another, is sent alone.
	underway map[string]int
	alone    bool // the last message sent has no id

	broken  error // why the channel is no longer usable
	refused bool  // RabbitMQ refused a message
}

type item struct {
	uuid    string // of its message, which is the caller's again when Publish has returned
	id      string
	size    int
	confirm *amqp091.DeferredConfirmation // nil until it is sent
	err     error                         // nil: confirmed, once the call is over
}

func (c *call) run() {
	if len(c.messages) > 1 {
		c.underway = make(map[string]int, min(len(c.messages), c.window))
	}
	for i := range c.messages {
		if c.ctx.Err() != nil { // Publish may have returned, and the messages are the caller's again
			c.broken = c.overdue()
			break
		}
		p, err := c.marshal(i)
		if err != nil {
			c.awaitAll()
			c.items[i].err = outbox.Permanent(fmt.Errorf("marshal it: %w", err))
			c.failFrom(i+1, fmt.Errorf("not sent, to keep the order: message %q before it cannot be marshalled",
				c.items[i].uuid))
			break
		}
		if c.awaitRoom(i); c.broken == nil {
			c.send(i, p)
		}
		if c.broken != nil {
			break
		}
	}
	c.awaitAll()
	if c.broken != nil {
		c.blame()
	}
}

func (c *call) marshal(i int) (amqp091.Publishing, error) {
	p, err := c.marshaler.Marshal(c.messages[i])
	if err != nil {
		return p, err
	}
	if p.MessageId == "" && len(c.messages[i].UUID) <= maxShortString {
		p.MessageId = c.messages[i].UUID
	}
	if err := check(&p, c.channel.session.Config.FrameSize); err != nil {
		return p, err
	}
	c.items[i].id, c.items[i].size = p.MessageId, len(p.Body)
	return p, nil
}

// awaitRoom returns when message i may be sent.
func (c *call) awaitRoom(i int) {
	most := c.window - 1
	if c.alone || c.items[i].id == "" {
		most = 0
	}
	for c.broken == nil && c.sent-c.settled > most {
		c.await()
	}
	for c.broken == nil {
		if _, twin := c.underway[c.items[i].id]; !twin {
			return
		}
		c.await()
	}
}

func (c *call) send(i int, p amqp091.Publishing) {
	if c.ctx.Err() != nil {
		c.broken = c.overdue()
		return
	}
	confirm, err := c.channel.PublishWithDeferredConfirm(c.exchange, c.key, c.mandatory, false, p)
	if errors.Is(err, amqp091.ErrClosed) {
		err = c.channel.reason(c.ctx)
	}
	if err != nil {
		c.broken = err
		return
	}
	c.items[i].confirm = confirm
	c.sent++
	c.alone = c.items[i].id == ""
	if c.underway != nil && !c.alone {
		c.underway[c.items[i].id] = i
	}
}

// awaitAll returns when everything sent is settled, or no more confirms will come.
func (c *call) awaitAll() {
	for c.sent > c.settled && c.await() {
		continue
	}
}

// await waits for the confirm of the oldest message on its way, and reports whether it came.
func (c *call) await() bool {
	select {
	case <-c.items[c.settled].confirm.Done():
	case <-c.ctx.Done():
		c.broken = c.overdue()
		return false
	}
	c.takeReturns()
	oldest := &c.items[c.settled]
	if !c.answered(oldest) {
		if c.broken == nil {
			c.broken = c.channel.reason(c.ctx)
		}
		return false
	}
	delete(c.underway, oldest.id)
	c.settled++
	return true
}

// answered reports whether RabbitMQ has confirmed or refused it, and notes a refusal. A return
// comes before either: amqp091 reads both from the wire in one goroutine.
//
// A confirm that is done and not acked is a nack, or amqp091 made it up for a channel that has
// closed. It marks the channel as closed first, so on a closed channel the confirm says nothing.
func (c *call) answered(it *item) bool {
	select {
	case <-it.confirm.Done():
	default:
		return false
	}
	switch {
	case it.confirm.Acked():
	case c.channel.IsClosed():
		return false
	case it.err == nil:
		c.refused = true
		it.err = errors.New("RabbitMQ refused it (basic.nack): a queue is full or has failed")
	}
	return true
}

func (c *call) takeReturns() {
	for {
		select {
		case r, open := <-c.channel.returns:
			if !open {
				return
			}
			c.returned(r)
		default:
			return
		}
	}
}

// returned finds the message that no queue took.
func (c *call) returned(r amqp091.Return) {
	i, known := c.underway[r.MessageId]
	if !known {
		i = c.settled // it was sent alone
	}
	if i >= c.sent {
		return // it is not of this call
	}
	c.items[i].err = outbox.Permanent(fmt.Errorf("no queue took it (%d %s, exchange %q, routing key %q): "+
		"declare its queue first, with SubscribeInitialize or Declare", r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey))
}

func (c *call) overdue() error {
	return fmt.Errorf("%w: RabbitMQ did not answer for %v%s", ErrUnconfirmed, c.timeout, c.channel.session.because())
}

// blame gives each message without an answer its error.
func (c *call) blame() {
	var open []*item
	for i := c.settled; i < c.sent; i++ {
		if it := &c.items[i]; !c.answered(it) {
			open = append(open, it)
		}
	}
	c.takeReturns() // those of all that have an answer
	open = slices.DeleteFunc(open, func(it *item) bool { return it.err != nil })
	guilty := culprit(c.broken)
	for _, it := range open {
		if guilty(it.size, len(open) == 1) {
			it.err = outbox.Permanent(c.broken)
		} else {
			it.err = fmt.Errorf("it was sent but not confirmed: %w", c.broken)
		}
	}
	c.failFrom(c.sent, fmt.Errorf("it was not sent: %w", c.broken))
}

// failFrom gives the messages from i on an error, unless they have one.
func (c *call) failFrom(i int, err error) {
	for ; i < len(c.items); i++ {
		if c.items[i].err == nil {
			c.items[i].err = err
		}
	}
}

var sizeLimit = regexp.MustCompile(`message size \d+ (?:is )?larger than (?:configured )?max size (\d+)`)

// culprit returns a function that reports whether RabbitMQ closed the channel because of a message.
// Only the text of the error says what limit on the size there is; for other faults, the message
// is known only if it alone was on its way.
func culprit(reason error) func(size int, alone bool) bool {
	var closed *amqp091.Error
	if !errors.As(reason, &closed) || !closed.Server ||
		closed.Code != amqp091.PreconditionFailed && closed.Code != amqp091.ContentTooLarge {
		return func(int, bool) bool { return false }
	}
	if found := sizeLimit.FindStringSubmatch(closed.Reason); found != nil {
		if limit, err := strconv.Atoi(found[1]); err == nil {
			return func(size int, _ bool) bool { return size > limit }
		}
	}
	return func(_ int, alone bool) bool { return alone }
}

// missing reports whether the channel was closed because there is no such exchange.
func (c *call) missing(exchange string) bool {
	var closed *amqp091.Error
	return exchange != "" && errors.As(c.broken, &closed) && closed.Code == amqp091.NotFound
}

func (c *call) done() bool { return c.broken == nil && c.sent == c.settled }

// result is what Publish returns.
func (c *call) result() error {
	failed := false
	errs := make([]error, len(c.items))
	for i := range c.items {
		if err := c.items[i].err; err != nil {
			failed = true
			errs[i] = errorf("publish message %q to topic %q: %w", c.items[i].uuid, c.topic, err)
		}
	}
	switch {
	case !failed:
		return nil
	case len(errs) == 1:
		return errs[0]
	default:
		return &outbox.PartialError{Errors: errs}
	}
}

package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/millrace/outbox"
)

// call is one call of Publish on its channel. Messages before confirmed are settled, those
// before sent are on their way: amqp091 gives confirms in the order of publishing.
type call struct {
	ctx             context.Context //nolint:containedctx // it lives as long as the call
	channel         *channel
	window          int
	timeout         time.Duration
	topic           string
	exchange, key   string
	mandatory       bool
	marshaler       amqp.Marshaler
	messages        []*message.Message
	items           []item
	sent, confirmed int

	// underway has the messages on their way by message-id, by which RabbitMQ's returns are
	// told apart: one that has none, or that of another, is not sent beside it.
	underway map[string]int
	alone    bool // the last one sent has none

	broken error // why the channel is of no use any more
}

type item struct {
	id   string
	size int
	err  error // nil: confirmed, once the call is over
}

func (c *call) run() {
	if len(c.messages) > 1 {
		c.underway = make(map[string]int, min(len(c.messages), c.window))
	}
	for i := range c.messages {
		p, err := c.marshal(i)
		if err != nil {
			c.awaitAll()
			c.items[i].err = outbox.Permanent(fmt.Errorf("marshal it: %w", err))
			c.failFrom(i+1, fmt.Errorf("held back behind message %q of the call, which cannot be marshalled",
				c.messages[i].UUID))
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
	for c.broken == nil && c.sent-c.confirmed > most {
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
	err := c.channel.Publish(c.exchange, c.key, c.mandatory, false, p)
	if errors.Is(err, amqp091.ErrClosed) {
		err = c.channel.reason(c.ctx)
	}
	if err != nil {
		c.broken = err
		return
	}
	c.sent++
	c.alone = c.items[i].id == ""
	if c.underway != nil && !c.alone {
		c.underway[c.items[i].id] = i
	}
}

// awaitAll returns when everything sent is confirmed, or no confirm will come any more.
func (c *call) awaitAll() {
	for c.sent > c.confirmed && c.await() {
		continue
	}
}

// await takes the next confirm and reports whether there was one.
func (c *call) await() bool {
	select {
	case confirm, open := <-c.channel.confirms:
		if open {
			c.settle(confirm.Ack)
			return true
		}
		if c.broken == nil {
			c.broken = c.channel.reason(c.ctx)
		}
	case <-c.ctx.Done():
		c.broken = c.overdue()
	}
	return false
}

// settle notes the confirm of the oldest message on its way. If it was returned, that was
// before: amqp091 delivers both in one goroutine.
func (c *call) settle(acked bool) {
	c.takeReturns()
	settled := &c.items[c.confirmed]
	if !acked && settled.err == nil {
		settled.err = errors.New("RabbitMQ refused it (basic.nack): a queue is full, or failed")
	}
	delete(c.underway, settled.id)
	c.confirmed++
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
		i = c.confirmed // it is alone
	}
	c.items[i].err = outbox.Permanent(fmt.Errorf("no queue took it (%d %s, exchange %q, routing key %q): "+
		"declare its queue first, with SubscribeInitialize or Declare", r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey))
}

func (c *call) overdue() error {
	return fmt.Errorf("%w: RabbitMQ did not answer for %v", ErrUnconfirmed, c.timeout)
}

// blame says of each message that was not confirmed what that means for it.
func (c *call) blame() {
	c.takeReturns()
	guilty := culprit(c.broken)
	for i := c.confirmed; i < c.sent; i++ {
		switch it := &c.items[i]; {
		case it.err != nil: // it was returned
		case guilty(it.size, c.sent-c.confirmed == 1):
			it.err = outbox.Permanent(c.broken)
		default:
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

// culprit returns what tells whether a message is the one for which RabbitMQ closed the
// channel. Its text is all that tells the limit on the size; other faults of a message are
// known only where one alone was on its way.
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

func (c *call) settled() bool { return c.broken == nil && c.sent == c.confirmed }

// result is what Publish returns.
func (c *call) result() error {
	failed := false
	errs := make([]error, len(c.items))
	for i := range c.items {
		if err := c.items[i].err; err != nil {
			failed = true
			errs[i] = fmt.Errorf("rabbitmq: publish message %q to topic %q: %w", c.messages[i].UUID, c.topic, err)
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

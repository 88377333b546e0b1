package replay

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/outbox"
)

// Target is where a replay sends messages: [Outbox], [Queue] or [Publisher].
type Target interface {
	kind() string

	// inTx reports whether put writes to the database, in the transaction of its context.
	inTx() bool
	put(ctx context.Context, items []item, allowed *admin.Operator) error

	// only returns the one consumer that gets the messages, or nil if any may.
	only() *inbox.QueueConfig
}

// Outbox stores messages in the outbox, for a relay to send them to the topics that they came from.
// The publisher's Config.OrderKey gives them their order keys; use [OrderKey] there to keep those of
// the archive.
func Outbox(to *outbox.Publisher) Target { return toOutbox{to} }

type toOutbox struct{ to *outbox.Publisher }

func (toOutbox) kind() string             { return "outbox" }
func (toOutbox) inTx() bool               { return true }
func (toOutbox) only() *inbox.QueueConfig { return nil }

func (t toOutbox) put(ctx context.Context, items []item, _ *admin.Operator) error {
	return byTopic(items, func(topic string, items []item) error {
		msgs := make([]*message.Message, 0, len(items))
		for _, i := range items {
			i.msg.SetContext(context.WithValue(ctx, orderKey{}, i.orderKey))
			msgs = append(msgs, i.msg)
		}
		return t.to.Publish(topic, msgs...)
	})
}

type orderKey struct{}

// OrderKey is an outbox.KeyFunc that gives a message the order key with which it was first stored, if
// the replay knows that: from the archive, or from a queue with an OrderKey.
func OrderKey(_ string, msg *message.Message) (string, error) {
	key, _ := msg.Context().Value(orderKey{}).(string)
	return key, nil
}

// Queue stores messages for one consumer, whose pubsub.Durable delivers them. The queue must have the
// Key of the consumer, and the OrderKey of its Durable if that has one.
func Queue(to *inbox.Queue) Target { return toQueue{to} }

type toQueue struct{ to *inbox.Queue }

func (toQueue) kind() string { return "queue" }
func (toQueue) inTx() bool   { return true }

func (t toQueue) only() *inbox.QueueConfig {
	config := t.to.Config()
	return &config
}

func (t toQueue) put(ctx context.Context, items []item, allowed *admin.Operator) error {
	return byTopic(items, func(topic string, items []item) error {
		msgs := make([]*message.Message, 0, len(items))
		for _, i := range items {
			msgs = append(msgs, i.msg)
		}
		if own := ambient.From(ctx); own != nil {
			own.AfterCommit(t.to, t.to.Wake)
		}
		if err := t.to.Put(ctx, topic, msgs...); err != nil || allowed == nil {
			return err
		}
		return t.to.Allow(ctx, *allowed, topic, msgs...)
	})
}

// Publisher sends messages at once, to the topics that they came from. If the process dies or the
// publisher fails in the middle of a batch, whoever continues the replay sends that batch again, with
// what was sent of it. A batch has 500 messages at most, or Request.PerSecond if that is less, and 32 MiB if it is more than
// one message.
//
// Before each batch the replay looks whether another process has cancelled or advanced it. What
// happens after that look is noticed when the batch is sent: of two calls that begin a batch at the
// same moment both send it, and a batch that was begun before a cancel is sent and not counted.
func Publisher(to message.Publisher) Target { return toPublisher{to} }

type toPublisher struct{ to message.Publisher }

func (toPublisher) kind() string             { return "publisher" }
func (toPublisher) inTx() bool               { return false }
func (toPublisher) only() *inbox.QueueConfig { return nil }

func (t toPublisher) put(ctx context.Context, items []item, _ *admin.Operator) error {
	for _, i := range items { // before the first of them is sent
		if i.topic == "" {
			return fmt.Errorf("message %q has no topic to go to: set Dead.TopicOf (--to-topic), choose others by Filter.Topic (--topic), "+
				"or send it to its consumer alone by replay.Queue (--into)", i.msg.UUID)
		}
	}
	return byTopic(items, func(topic string, items []item) error {
		msgs := make([]*message.Message, 0, len(items))
		for _, i := range items {
			i.msg.SetContext(ctx)
			msgs = append(msgs, i.msg)
		}
		return t.to.Publish(topic, msgs...)
	})
}

// byTopic calls put for each run of messages of the same topic, in their order.
func byTopic(items []item, put func(topic string, items []item) error) error {
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].topic == items[0].topic {
			n++
		}
		if err := put(items[0].topic, items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

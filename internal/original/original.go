// Package original keeps a message as the outermost part of Millrace received it, whatever
// middlewares and handlers change.
package original

import (
	"bytes"
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Message is a message as it came. It never changes: nobody who could change it gets its payload or
// its metadata.
type Message struct {
	UUID     string
	Payload  message.Payload
	Metadata message.Metadata

	given   *message.Message // the message that others work on
	queued  bool             // by pubsub.Durable, which stores it as it came
	handler string           // of the subscription, "" if not known yet
	topic   string
}

// Of records msg as it is now. Before others may change msg, give it copies with [Message.Give].
func Of(msg *message.Message) *Message {
	ctx := msg.Context()
	return &Message{
		UUID: msg.UUID, Payload: msg.Payload, Metadata: msg.Metadata,
		given: msg, handler: message.HandlerNameFromCtx(ctx), topic: message.SubscribeTopicFromCtx(ctx),
	}
}

// Queued returns a message that pubsub.Durable took from topic and delivers as given, which has its
// own payload and metadata.
func Queued(topic, uuid string, payload message.Payload, metadata message.Metadata, given *message.Message) *Message {
	return &Message{UUID: uuid, Payload: payload, Metadata: metadata, given: given, queued: true, topic: topic}
}

// Taken reports whether pubsub.Durable took the message.
func (o *Message) Taken() bool { return o.queued }

// Key is the context key of the original.
type Key struct{}

// With returns ctx with o in it.
func With(ctx context.Context, o *Message) context.Context { return context.WithValue(ctx, Key{}, o) }

// From returns the original of msg, nil if its context has none. If a context belongs to another
// message, such as one whose handler publishes msg, its original is not that of msg.
func From(msg *message.Message) *Message {
	ctx := msg.Context()
	o, _ := ctx.Value(Key{}).(*Message)
	if o == nil || o.given == msg {
		return o
	}
	// A middleware may pass on another message with this context.
	if o.UUID != msg.UUID || !known(o.handler, message.HandlerNameFromCtx(ctx)) || !known(o.topic, message.SubscribeTopicFromCtx(ctx)) {
		return nil
	}
	return o
}

// known reports whether then and now do not differ, as far as both are known.
func known(then, now string) bool { return then == "" || now == "" || then == now }

// Keep puts the original of msg into its context, unless a queue has done so, and gives msg copies.
func Keep(msg *message.Message) {
	if o, _ := msg.Context().Value(Key{}).(*Message); o != nil && (o.given == msg || o.queued && From(msg) != nil) {
		return
	}
	o := Of(msg)
	o.Give(msg)
	msg.SetContext(With(msg.Context(), o))
}

// Give resets msg to o, with its own copies of payload and metadata.
func (o *Message) Give(msg *message.Message) {
	msg.UUID, msg.Payload, msg.Metadata = o.UUID, bytes.Clone(o.Payload), maps.Clone(o.Metadata)
}

// Is reports whether msg has the content of o.
func (o *Message) Is(msg *message.Message) bool {
	return o.UUID == msg.UUID && (o.Payload == nil) == (msg.Payload == nil) && (o.Metadata == nil) == (msg.Metadata == nil) &&
		bytes.Equal(o.Payload, msg.Payload) && maps.Equal(o.Metadata, msg.Metadata)
}

// Copy returns a message with the content of o and its own copies of payload and metadata.
func (o *Message) Copy() *message.Message {
	msg := message.NewMessage(o.UUID, nil)
	o.Give(msg)
	return msg
}

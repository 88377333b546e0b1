// Package original keeps a message as the outermost part of Millrace was given it, whatever
// middlewares and handlers make of it.
package original

import (
	"bytes"
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Message is a message as it came. Nobody changes it, and nobody is given its payload or
// its metadata who may.
type Message struct {
	UUID     string
	Payload  message.Payload
	Metadata message.Metadata

	given   *message.Message // which others work on
	queued  bool             // by pubsub.Durable, which stores it so
	handler string           // of the subscription, "" where it is not known yet
	topic   string
}

// Of returns what msg is now. Whoever lets others at msg gives it copies first, with [Message.Give].
func Of(msg *message.Message) *Message {
	ctx := msg.Context()
	return &Message{
		UUID: msg.UUID, Payload: msg.Payload, Metadata: msg.Metadata,
		given: msg, handler: message.HandlerNameFromCtx(ctx), topic: message.SubscribeTopicFromCtx(ctx),
	}
}

// Queued returns a message that pubsub.Durable took from topic and hands on as given, which
// has a payload and a metadata of its own.
func Queued(topic, uuid string, payload message.Payload, metadata message.Metadata, given *message.Message) *Message {
	return &Message{UUID: uuid, Payload: payload, Metadata: metadata, given: given, queued: true, topic: topic}
}

// Taken reports whether pubsub.Durable took the message.
func (o *Message) Taken() bool { return o.queued }

// Key is that of the original in a context.
type Key struct{}

// With returns ctx with o in it.
func With(ctx context.Context, o *Message) context.Context { return context.WithValue(ctx, Key{}, o) }

// From returns the original of msg, nil if its context has none. A context can be handed on
// with another message, such as one that a handler publishes: its original is not of that.
func From(msg *message.Message) *Message {
	ctx := msg.Context()
	o, _ := ctx.Value(Key{}).(*Message)
	if o == nil || o.given == msg {
		return o
	}
	// A middleware may hand on a message of its own.
	if o.UUID != msg.UUID || !known(o.handler, message.HandlerNameFromCtx(ctx)) || !known(o.topic, message.SubscribeTopicFromCtx(ctx)) {
		return nil
	}
	return o
}

// known reports whether there is nothing that tells the two apart.
func known(then, now string) bool { return then == "" || now == "" || then == now }

// Keep puts the original of msg into its context, unless a queue did, and gives msg copies.
func Keep(msg *message.Message) {
	if o, _ := msg.Context().Value(Key{}).(*Message); o != nil && (o.given == msg || o.queued && From(msg) != nil) {
		return
	}
	o := Of(msg)
	o.Give(msg)
	msg.SetContext(With(msg.Context(), o))
}

// Give makes msg what o is, with copies of its own.
func (o *Message) Give(msg *message.Message) {
	msg.UUID, msg.Payload, msg.Metadata = o.UUID, bytes.Clone(o.Payload), maps.Clone(o.Metadata)
}

// Is reports whether msg says what o does.
func (o *Message) Is(msg *message.Message) bool {
	return o.UUID == msg.UUID && (o.Payload == nil) == (msg.Payload == nil) && (o.Metadata == nil) == (msg.Metadata == nil) &&
		bytes.Equal(o.Payload, msg.Payload) && maps.Equal(o.Metadata, msg.Metadata)
}

// Copy returns a message that says what o does, with copies of its own.
func (o *Message) Copy() *message.Message {
	msg := message.NewMessage(o.UUID, nil)
	o.Give(msg)
	return msg
}

package tracing

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/stack"
)

// consumer is a slice so that starting a span does not allocate one.
var consumer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}

// Middleware makes a span for each delivery. The span is a child of the span that created the
// message, which the metadata names, and its status is the handler's error. Add Middleware first,
// outside everything else; then one delivery is one span, however often Watermill's Retry calls the
// handler.
//
// The handler finds the span in the message's context, and so do [Tracer.InboxObserver] and a
// [Tracer.Publisher] that publishes messages with this context. Middleware gives the span to
// returned messages that have no span in their own context, for decorators of the router's
// publisher.
func (t *Tracer) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		stack.Grow()
		own := msg.Context()
		defer msg.SetContext(own) // inner middlewares leave cancelled contexts behind
		ctx, span := t.process(own, msg)
		returned := false
		defer func() {
			if !returned {
				span.SetStatus(codes.Error, "the handler panicked")
			}
			span.End()
		}()
		msg.SetContext(ctx)
		produced, err := h(msg)
		returned = true
		fail(span, err)
		pass(ctx, produced)
		return produced, err
	}
}

// process starts the span of a delivery.
func (t *Tracer) process(own context.Context, msg *message.Message) (context.Context, trace.Span) {
	of := t.processes.on(message.SubscribeTopicFromCtx(own))
	from := t.extract(own, msg.Metadata)
	ctx, span := t.spans.Start(from, of.name, consumer...)
	if span.IsRecording() {
		r := takeRoom()
		all := describeDelivery(describe(r.few[:0], of, msg), own, msg)
		span.SetAttributes(all...)
		r.giveBack(all)
		link(span, from)
	}
	return ctx, span
}

// link links span to the span in ctx. The conventions require a link to the span that created a
// message, even if that is the parent.
func link(span trace.Span, ctx context.Context) {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		span.AddLink(trace.Link{SpanContext: sc})
	}
}

// pass gives what ctx carries to messages that have no span in their own contexts.
//
//nolint:contextcheck // each message has its own
func pass(ctx context.Context, msgs []*message.Message) {
	span := trace.SpanFromContext(ctx)
	if !span.SpanContext().IsValid() {
		return
	}
	for _, m := range msgs {
		if m == nil || trace.SpanContextFromContext(m.Context()).IsValid() {
			continue
		}
		m.SetContext(baggage.ContextWithBaggage(trace.ContextWithSpan(m.Context(), span), baggage.FromContext(ctx)))
	}
}

// Returned puts contexts into the metadata of messages that a handler returns, as
// [Tracer.Publisher] does with those that are published. Add it inside middleware.Inbox
// where that has no Outbox: what it stores of the messages, to publish it again if the
// process dies, then bears the context, too.
func (t *Tracer) Returned(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context() // an inner Timeout leaves its cancelled context behind
		produced, err := h(msg)
		if err != nil {
			return produced, err
		}
		pass(ctx, produced)
		topic := message.PublishTopicFromCtx(ctx)
		for _, m := range produced {
			if m == nil {
				continue
			}
			if _, carries := t.origin(m.Metadata); !carries {
				t.create(topic, m).End()
			}
		}
		return produced, nil
	}
}

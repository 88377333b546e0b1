package tracing

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/sole"
	"github.com/millrace-go/millrace/outbox"
)

var (
	producer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer)}
	client   = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
)

// Publisher returns next with a "create" span for each message, a child of the span in the
// message's context. It puts the context of the new span into the metadata, so that every later
// span about the message is its child. It does not change the message's own context, so next may be
// an outbox.Publisher, which finds the transaction there.
//
// A message whose metadata already carry a context keeps it, because a stored message must be
// published unchanged; it gets the span of [Tracer.Sender]. Publisher changes the metadata of the
// other messages in place.
func (t *Tracer) Publisher(next message.Publisher) message.Publisher {
	return &publisher{tracer: t, next: next, begin: t.createOrSend}
}

// Decorate is [Tracer.Publisher] as a decorator of a router's publishers. Add it before others, so
// that it is outside: then the outbox's Decorate stores the context.
func (t *Tracer) Decorate(next message.Publisher) (message.Publisher, error) {
	return t.Publisher(next), nil
}

// Sender returns next with a "send" span for each message and attempt, a child of the span that
// created the message; a message without a context begins a trace. It changes neither the messages
// nor the errors of next. Use it for the publisher of outbox.NewRelay.
func (t *Tracer) Sender(next message.Publisher) message.Publisher {
	return &publisher{tracer: t, next: next, begin: t.send}
}

type publisher struct {
	tracer *Tracer
	next   message.Publisher
	begin  func(topic string, msg *message.Message) trace.Span
}

// Publish calls the publisher behind it.
func (p *publisher) Publish(topic string, msgs ...*message.Message) (err error) {
	var few [8]trace.Span
	spans := few[:0]
	returned := false
	defer func() {
		for i, span := range spans {
			switch {
			case !returned:
				span.SetStatus(codes.Error, "the publisher panicked")
			case err != nil:
				fail(span, errorOf(err, i, len(spans)))
			}
			span.End()
		}
	}()
	for _, m := range msgs {
		if m != nil {
			spans = append(spans, p.begin(topic, m))
		}
	}
	err = p.next.Publish(topic, msgs...)
	returned = true
	return err
}

// errorOf returns the part of err, the error of a call with n messages, that belongs to the i-th.
func errorOf(err error, i, n int) error {
	if partial, is := sole.As[*outbox.PartialError](err); is && partial != nil && len(partial.Errors) == n {
		return partial.Errors[i]
	}
	return err
}

// Close closes the publisher behind it.
func (p *publisher) Close() error { return p.next.Close() }

// Unwrap returns the publisher behind it: outbox.NewRelay refuses the outbox itself.
func (p *publisher) Unwrap() message.Publisher { return p.next }

func (t *Tracer) createOrSend(topic string, msg *message.Message) trace.Span {
	if _, carries := t.origin(msg.Metadata); carries {
		return t.send(topic, msg)
	}
	return t.create(topic, msg)
}

// create starts the span that creates msg.
func (t *Tracer) create(topic string, msg *message.Message) trace.Span {
	of := t.creates.on(topic)
	ctx, span := t.spans.Start(msg.Context(), of.name, producer...)
	if span.IsRecording() {
		r := takeRoom()
		all := describe(r.few[:0], of, msg)
		span.SetAttributes(all...)
		r.giveBack(all)
	}
	injected := false
	defer func() {
		if !injected { // the propagator panicked
			span.End()
		}
	}()
	t.inject(ctx, msg)
	injected = true
	return span
}

// send starts the span of an attempt to send msg.
func (t *Tracer) send(topic string, msg *message.Message) trace.Span {
	from, carries := t.origin(msg.Metadata)
	of := t.sends.on(topic)
	_, span := t.spans.Start(from, of.name, client...)
	if span.IsRecording() {
		r := takeRoom()
		all := describe(r.few[:0], of, msg)
		span.SetAttributes(all...)
		r.giveBack(all)
		if carries {
			link(span, from)
		}
		if sc := trace.SpanContextFromContext(msg.Context()); sc.IsValid() {
			span.AddLink(trace.Link{SpanContext: sc})
		}
	}
	return span
}

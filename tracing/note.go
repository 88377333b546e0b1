package tracing

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// decision is what an observer was told.
type decision struct {
	what     string
	topic    string
	metadata message.Metadata // of the message, if known
	err      error
}

// note adds d to the span in ctx if that has not ended, otherwise to the trace of the message as a
// span of no length. It drops a decision that belongs to no trace. It calls attributes only if they
// are recorded.
func (t *Tracer) note(ctx context.Context, d decision, attributes func([]attribute.KeyValue) []attribute.KeyValue) {
	span := trace.SpanFromContext(ctx)
	sc := span.SpanContext()
	switch {
	case span.IsRecording():
		r := takeRoom()
		all := attributes(r.few[:0])
		span.AddEvent(d.what, trace.WithAttributes(all...))
		r.giveBack(all)
	case !sc.IsValid(): // no delivery, or no Middleware around it
		t.noteInTrace(d, attributes) //nolint:contextcheck // the message has its own
	case sc.IsSampled() && !sc.IsRemote(): // ended; a remote span is recorded elsewhere
		t.addSpan(ctx, d, attributes)
	}
}

// noteInTrace adds d to the trace of the message, if it has one.
func (t *Tracer) noteInTrace(d decision, attributes func([]attribute.KeyValue) []attribute.KeyValue) {
	if from, carries := t.origin(d.metadata); carries && trace.SpanContextFromContext(from).IsSampled() {
		t.addSpan(from, d, attributes)
	}
}

func (t *Tracer) addSpan(ctx context.Context, d decision, attributes func([]attribute.KeyValue) []attribute.KeyValue) {
	_, span := t.spans.Start(ctx, named(d.what, d.topic))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	r := takeRoom()
	all := attributes(r.few[:0])
	span.SetAttributes(all...)
	r.giveBack(all)
	if d.err != nil {
		span.SetStatus(codes.Error, plain(d.err.Error()))
	}
}

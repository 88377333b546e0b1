package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/inbox"
)

// batch makes the span of a try to handle several messages at once, if one of their spans is recorded.
func (t *Tracer) batch(ctx context.Context, e inbox.Event) {
	of := inbox.Internals{}.BatchOf(ctx)
	if of == nil || e.Count < 2 {
		return
	}
	var links []trace.Link
	var recorded []trace.Span
	for _, delivery := range of.Deliveries {
		span := trace.SpanFromContext(delivery) //nolint:contextcheck // each delivery has its own
		if sc := span.SpanContext(); sc.IsSampled() {
			links = append(links, trace.Link{SpanContext: sc})
			recorded = append(recorded, span)
		}
	}
	if len(links) == 0 {
		return
	}
	_, span := t.spans.Start(ctx, named("batch", e.Topic), trace.WithNewRoot(), trace.WithTimestamp(of.Began), trace.WithLinks(links...))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	for _, one := range recorded {
		link(one, trace.ContextWithSpan(ctx, span))
	}
	r := takeRoom()
	all := describeDecision(r.few[:0], e.Reason, e.Count, e.Err)
	all = append(all, attributeConsumer.String(plain(e.Consumer)), attributeEpoch.Int(e.Epoch))
	if e.Duration > 0 {
		all = append(all, attributeGathered.Float64(e.Duration.Seconds()))
	}
	span.SetAttributes(all...)
	r.giveBack(all)
}

// attributeGathered is how long the first message of a batch waited, in seconds.
const attributeGathered = attribute.Key("millrace.gathered")

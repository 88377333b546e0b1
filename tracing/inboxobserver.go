package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/inbox"
)

// InboxObserver returns an observer for inbox.Config.Observers. It adds each decision, with its
// reason, to the span of the delivery. If that span has ended, or there is no delivery, the
// decision becomes a span of its own in the trace of the message. Each try of a batch becomes a span
// in a trace of its own; it and the spans of its deliveries have links to each other.
func (t *Tracer) InboxObserver() inbox.Observer { return inboxObserver{t} }

type inboxObserver struct{ *Tracer }

// TraceID returns the trace of a delivery. The inbox keeps it with a failed attempt.
func (inboxObserver) TraceID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// Wants leaves out the receipt of a message, which the span shows, and the age of claims.
func (inboxObserver) Wants(k inbox.Kind) bool {
	return k != inbox.KindReceived && k != inbox.KindClaims
}

// Observe adds e to the trace.
func (o inboxObserver) Observe(ctx context.Context, e inbox.Event) {
	if e.Kind == inbox.KindBatch {
		o.batch(ctx, e)
		return
	}
	o.note(ctx, decision{e.Kind.String(), e.Topic, e.Metadata, e.Err}, func(all []attribute.KeyValue) []attribute.KeyValue {
		all = describeDecision(all, e.Reason, e.Count, e.Err)
		if e.Consumer != "" {
			all = append(all, attributeConsumer.String(plain(e.Consumer)), attributeEpoch.Int(e.Epoch))
		}
		if e.MessageID != "" {
			all = append(all, attributeMessageID.String(plain(e.MessageID)))
		}
		if e.Type != "" {
			all = append(all, attributeEventType.String(plain(e.Type)))
		}
		if e.Attempt > 0 {
			all = append(all, attributeAttempt.Int(e.Attempt))
		}
		return all
	})
}

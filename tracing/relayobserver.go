package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/millrace-go/millrace/outbox"
)

// RelayObserver returns a value for outbox.RelayConfig.Observers that adds to the trace of a
// message what a relay decides about it: that it is tried again, that it is parked, that
// nothing gets through. What is about no one message is left to logs and metrics.
func (t *Tracer) RelayObserver() outbox.RelayObserver { return relayObserver{t} }

type relayObserver struct{ *Tracer }

func (o relayObserver) tell(what string, e outbox.RelayEvent) {
	o.noteInTrace(decision{what, e.Topic, e.Metadata, e.Err}, func(all []attribute.KeyValue) []attribute.KeyValue {
		all = describeDecision(all, e.Reason, e.Count, e.Err)
		if e.UUID != "" {
			all = append(all, semconv.MessagingMessageID(plain(e.UUID)))
		}
		if e.Attempts > 0 {
			all = append(all, attributeAttempt.Int(e.Attempts))
		}
		return all
	})
}

//nolint:contextcheck // the context is that of the relay, not of the message
func (o relayObserver) ObserveAttempt(_ context.Context, e outbox.RelayEvent) { o.tell("attempt", e) }

//nolint:contextcheck // the same
func (o relayObserver) ObserveParked(_ context.Context, e outbox.RelayEvent) { o.tell("parked", e) }

//nolint:contextcheck // the same
func (o relayObserver) ObserveOutage(_ context.Context, e outbox.RelayEvent) { o.tell("outage", e) }

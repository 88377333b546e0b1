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
func (t *Tracer) RelayObserver() outbox.Observer { return relayObserver{t} }

type relayObserver struct{ *Tracer }

// Wants leaves out what is about no one message.
func (relayObserver) Wants(k outbox.Kind) bool {
	return k == outbox.KindAttempt || k == outbox.KindParked || k == outbox.KindOutage
}

// Observe adds e to the trace of its message.
//
//nolint:contextcheck // the context is that of the relay, not of the message
func (o relayObserver) Observe(_ context.Context, e outbox.Event) {
	o.noteInTrace(decision{e.Kind.String(), e.Topic, e.Metadata, e.Err}, func(all []attribute.KeyValue) []attribute.KeyValue {
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

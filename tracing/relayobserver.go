package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/millrace-go/millrace/outbox"
)

// RelayObserver returns an observer for outbox.RelayConfig.Observers. It adds to the trace of a
// message what a relay decides about it: to try it again, to park it, or that the broker is
// unreachable. Events that are not about one message belong in logs and metrics.
func (t *Tracer) RelayObserver() outbox.Observer { return relayObserver{t} }

type relayObserver struct{ *Tracer }

// Wants leaves out events that are not about one message.
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

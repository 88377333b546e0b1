package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/millrace-go/millrace/inbox"
)

// InboxObserver returns a value for inbox.Config.Observers that adds each decision, with its
// reason, to the span of the delivery it was made about. One that is made when that span has
// ended, or without a delivery, becomes a span of its own in the trace of the message.
func (t *Tracer) InboxObserver() inbox.Observer { return inboxObserver{t} }

type inboxObserver struct{ *Tracer }

func (o inboxObserver) tell(ctx context.Context, what string, e inbox.Event) {
	o.note(ctx, decision{what, e.Topic, e.Metadata, e.Err}, func(all []attribute.KeyValue) []attribute.KeyValue {
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
		return all
	})
}

func (o inboxObserver) ObserveCompleted(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "completed", e)
}
func (o inboxObserver) ObserveRetried(ctx context.Context, e inbox.Event) { o.tell(ctx, "retried", e) }
func (o inboxObserver) ObserveReclaimed(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "reclaimed", e)
}
func (o inboxObserver) ObserveFailed(ctx context.Context, e inbox.Event) { o.tell(ctx, "failed", e) }
func (o inboxObserver) ObserveDuplicate(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "duplicate", e)
}
func (o inboxObserver) ObserveCollision(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "collision", e)
}
func (o inboxObserver) ObserveParked(ctx context.Context, e inbox.Event) { o.tell(ctx, "parked", e) }
func (o inboxObserver) ObserveStale(ctx context.Context, e inbox.Event)  { o.tell(ctx, "stale", e) }
func (o inboxObserver) ObserveGap(ctx context.Context, e inbox.Event)    { o.tell(ctx, "gap", e) }
func (o inboxObserver) ObserveHeld(ctx context.Context, e inbox.Event)   { o.tell(ctx, "held", e) }
func (o inboxObserver) ObserveReleased(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "released", e)
}
func (o inboxObserver) ObserveForgottenTx(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "forgotten tx", e)
}
func (o inboxObserver) ObserveEndedTx(ctx context.Context, e inbox.Event) { o.tell(ctx, "ended tx", e) }
func (o inboxObserver) ObserveSettled(ctx context.Context, e inbox.Event) { o.tell(ctx, "settled", e) }
func (o inboxObserver) ObserveContention(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "contention", e)
}
func (o inboxObserver) ObserveOutage(ctx context.Context, e inbox.Event) { o.tell(ctx, "outage", e) }
func (o inboxObserver) ObserveReplayed(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "replayed", e)
}
func (o inboxObserver) ObservePurged(ctx context.Context, e inbox.Event) { o.tell(ctx, "purged", e) }
func (o inboxObserver) ObserveDoubleEffect(ctx context.Context, e inbox.Event) {
	o.tell(ctx, "double effect", e)
}
func (o inboxObserver) ObserveEvicted(ctx context.Context, e inbox.Event) { o.tell(ctx, "evicted", e) }

package tracing

import (
	"context"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/millrace-go/millrace/inbox"
)

// Attributes without a name in the semantic conventions.
const (
	attributeHandler     = attribute.Key("watermill.handler")
	attributeRedelivered = attribute.Key("millrace.redelivered")
	attributeAttempt     = attribute.Key("millrace.attempt")
	attributeConsumer    = attribute.Key("millrace.consumer")
	attributeEpoch       = attribute.Key("millrace.epoch")
	attributeMessageID   = attribute.Key("millrace.message_id")
	attributeEventType   = attribute.Key("millrace.event_type")
	attributeReason      = attribute.Key("millrace.reason")
	attributeCount       = attribute.Key("millrace.count")
	attributeError       = attribute.Key("millrace.error")
)

// correlationID is the metadata field of Watermill's middleware CorrelationID.
const correlationID = "correlation_id"

// plain returns text as valid UTF-8. OTLP refuses a whole batch of spans if one string is not
// UTF-8, and a joined key may not be.
func plain(text string) string { return strings.ToValidUTF8(text, "?") }

// describe adds the attributes of msg. Of the payload it gives only the size.
func describe(all []attribute.KeyValue, of *subject, msg *message.Message) []attribute.KeyValue {
	all = append(all, of.attributes...)
	all = append(all, semconv.MessagingMessageID(plain(msg.UUID)), semconv.MessagingMessageBodySize(len(msg.Payload)))
	if id := msg.Metadata[correlationID]; id != "" {
		all = append(all, semconv.MessagingMessageConversationID(plain(id)))
	}
	return all
}

// describeDelivery adds the consumer of msg, and whether this is the first delivery.
func describeDelivery(all []attribute.KeyValue, ctx context.Context, msg *message.Message) []attribute.KeyValue {
	if handler := message.HandlerNameFromCtx(ctx); handler != "" {
		all = append(all, attributeHandler.String(plain(handler)))
	} else if consumer := inbox.StoredFor(ctx); consumer != "" {
		all = append(all, attributeConsumer.String(plain(consumer)))
	}
	attempt := inbox.Attempt(ctx)
	if attempt > 0 {
		all = append(all, attributeAttempt.Int(attempt))
	}
	if attempt > 1 || inbox.Redelivered(msg) {
		all = append(all, attributeRedelivered.Bool(true))
	}
	return all
}

// describeDecision adds a decision and its reason.
func describeDecision(all []attribute.KeyValue, reason string, count int, err error) []attribute.KeyValue {
	if reason != "" {
		all = append(all, attributeReason.String(plain(reason)))
	}
	if count != 0 {
		all = append(all, attributeCount.Int(count))
	}
	if err != nil {
		all = append(all, attributeError.String(plain(err.Error())))
	}
	return all
}

// scratch has room for attributes until a span copies them.
var scratch = sync.Pool{New: func() any { return new(room) }}

type room struct{ few [16]attribute.KeyValue }

func (r *room) giveBack(used []attribute.KeyValue) {
	clear(used) // otherwise it would keep messages alive
	scratch.Put(r)
}

func takeRoom() *room { return scratch.Get().(*room) } //nolint:forcetypeassert // the pool has nothing else

package tracing_test

import (
	"context"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/tracing"
)

const secret = "the payload, which is nobody's business"

// bed is a tracer whose spans are kept.
type bed struct {
	*testing.T
	*tracing.Tracer
	kept  *tracetest.InMemoryExporter
	spans trace.Tracer // of the service itself
}

func newBed(t *testing.T, options ...sdktrace.TracerProviderOption) *bed {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(kept))...)
	return &bed{
		T: t, Tracer: tracing.New(tracing.Config{TracerProvider: provider}), kept: kept, spans: provider.Tracer("service"),
	}
}

// one returns the only span of a name that has ended.
func (b *bed) one(name string) tracetest.SpanStub {
	b.Helper()
	all := b.all(name)
	require.Len(b, all, 1, "spans named %q", name)
	return all[0]
}

func (b *bed) all(name string) (found tracetest.SpanStubs) {
	for _, s := range b.kept.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// isChild asserts that one span is the child of another.
func (b *bed) isChild(child, parent tracetest.SpanStub) {
	b.Helper()
	assert.Equal(b, parent.SpanContext.TraceID(), child.SpanContext.TraceID(), "%s is in another trace than %s", child.Name, parent.Name)
	assert.Equal(b, parent.SpanContext.SpanID(), child.Parent.SpanID(), "%s is no child of %s", child.Name, parent.Name)
}

func attributes(list []attribute.KeyValue) map[string]string {
	all := make(map[string]string, len(list))
	for _, kv := range list {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func newMessage(uuid string) *message.Message {
	return message.NewMessage(uuid, []byte(secret))
}

// made returns a message that carries the context of a span that has ended.
func (b *bed) made() (*message.Message, tracetest.SpanStub) {
	b.Helper()
	msg := newMessage("1")
	require.NoError(b, b.Publisher(&publisher{}).Publish("orders", msg))
	msg.SetContext(context.Background())
	all := b.all("create orders")
	return msg, all[len(all)-1]
}

// publisher keeps what it is given, and does what it is told.
type publisher struct {
	do     func(msgs []*message.Message) error
	topic  string
	msgs   []*message.Message
	seen   []message.Metadata
	closed bool
}

func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	p.topic, p.msgs = topic, msgs
	for _, m := range msgs {
		p.seen = append(p.seen, maps.Clone(m.Metadata))
	}
	if p.do == nil {
		return nil
	}
	return p.do(msgs)
}

func (p *publisher) Close() error {
	p.closed = true
	return nil
}

package tracing_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-go/millrace/tracing"
)

func TestMiddlewareMakesASpanOfADelivery(t *testing.T) {
	b := newBed(t)
	msg, create := b.made()
	msg.Metadata.Set("correlation_id", "c")
	msg.Metadata.Set("_millrace_amqp_redelivered", "true")
	type key struct{}
	own, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "kept"))
	defer cancel()
	msg.SetContext(own)
	produced, err := b.Middleware(func(m *message.Message) ([]*message.Message, error) {
		assert.Equal(t, "kept", m.Context().Value(key{}))
		trace.SpanFromContext(m.Context()).AddEvent("handled")
		late, end := context.WithCancel(m.Context()) // as Watermill's Timeout leaves it
		end()
		m.SetContext(late)
		return []*message.Message{newMessage("2")}, nil
	})(msg)
	require.NoError(t, err)
	assert.Equal(t, own, msg.Context(), "restored")

	process := b.one("process")
	b.isChild(process, create)
	assert.Equal(t, trace.SpanKindConsumer, process.SpanKind)
	assert.Equal(t, "handled", process.Events[0].Name)
	assert.Equal(t, codes.Unset, process.Status.Code)
	assert.Equal(t, map[string]string{
		"messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.system": "watermill",
		"messaging.message.id": "1", "messaging.message.body.size": "39", "messaging.message.conversation_id": "c",
		"millrace.redelivered": "true",
	}, attributes(process.Attributes))
	require.Len(t, process.Links, 1)
	assert.Equal(t, create.SpanContext.SpanID(), process.Links[0].SpanContext.SpanID())
	assert.Equal(t, process.SpanContext.SpanID(), trace.SpanContextFromContext(produced[0].Context()).SpanID())
	assert.Empty(t, produced[0].Metadata, "its publisher does that")
}

func TestMiddlewareTellsOfFailures(t *testing.T) {
	b := newBed(t)
	boom := errors.New("boom")
	msg := newMessage("1")
	_, err := b.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, boom })(msg)
	assert.Same(t, boom, err)
	failed := b.one("process")
	assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: "boom"}, failed.Status)

	b.kept.Reset()
	own := msg.Context()
	assert.PanicsWithValue(t, "boom", func() {
		_, _ = b.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })(msg)
	})
	assert.Equal(t, codes.Error, b.one("process").Status.Code)
	assert.Equal(t, own, msg.Context())
}

// Redelivered messages must be published with the metadata that were stored, so the context
// must be in them before they are.
func TestReturnedPutsContextsIntoWhatAHandlerReturns(t *testing.T) {
	b := newBed(t)
	msg := newMessage("1")
	produced, err := b.Middleware(b.Returned(func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{newMessage("2"), newMessage("3")}, nil
	}))(msg)
	require.NoError(t, err)
	creates := b.all("create")
	require.Len(t, creates, 2)
	for i, m := range produced {
		b.isChild(creates[i], b.one("process"))
		assert.Contains(t, m.Metadata["traceparent"], creates[i].SpanContext.SpanID().String())
	}
	boom := errors.New("boom")
	_, err = b.Returned(func(*message.Message) ([]*message.Message, error) { return nil, boom })(msg)
	assert.Same(t, boom, err)
}

// A router gives what a handler returned to its publisher after every middleware is done.
func TestRouterPublishesInTheSameTrace(t *testing.T) {
	b := newBed(t)
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(b.Middleware, middleware.CorrelationID)
	router.AddPublisherDecorators(b.Decorate)
	router.AddHandler("billing", "orders", channel, "invoices", channel, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{newMessage("invoice")}, nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	invoices, err := channel.Subscribe(t.Context(), "invoices")
	require.NoError(t, err)
	msg, create := b.made()
	require.NoError(t, channel.Publish("orders", msg))
	invoice := <-invoices
	invoice.Ack()
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)

	process := b.one("process orders")
	b.isChild(process, create)
	assert.Equal(t, "billing", attributes(process.Attributes)["watermill.handler"])
	assert.Equal(t, "orders", attributes(process.Attributes)["messaging.destination.name"])
	b.isChild(b.one("create invoices"), process)
	assert.Contains(t, invoice.Metadata["traceparent"], process.SpanContext.TraceID().String())
	for _, s := range b.kept.GetSpans() {
		for name, value := range attributes(s.Attributes) {
			assert.False(t, strings.Contains(value, secret), "%s of %s tells the payload", name, s.Name)
		}
	}
}

// A context that comes with a message goes on with what is made of it, whoever records.
func TestWithoutAProviderContextsPassThrough(t *testing.T) {
	b := newBed(t)
	msg, create := b.made()
	silent := tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider()})
	to := &publisher{}
	_, err := silent.Middleware(func(m *message.Message) ([]*message.Message, error) {
		next := newMessage("2")
		next.SetContext(m.Context())
		return nil, silent.Publisher(to).Publish("invoices", next)
	})(msg)
	require.NoError(t, err)
	assert.Contains(t, to.seen[0]["traceparent"], create.SpanContext.SpanID().String())

	plain := newMessage("3")
	plain.Metadata = nil
	require.NoError(t, silent.Publisher(to).Publish("orders", plain))
	assert.Nil(t, plain.Metadata, "there is nothing to carry")
}

func TestPropagatorOfTheProcess(t *testing.T) {
	otel.SetTextMapPropagator(propagation.Baggage{})
	t.Cleanup(func() { otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator()) }) // none
	b := newBed(t)
	msg := newMessage("1")
	require.NoError(t, b.Publisher(&publisher{}).Publish("orders", msg))
	assert.Empty(t, msg.Metadata, "only baggage travels")
}

func TestMiddlewareCostsLittleWhereNothingIsRecorded(t *testing.T) {
	silent := tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider()})
	handled := silent.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	msg := newMessage("1")
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() { _, _ = handled(msg) }), 3.0)
}

func BenchmarkMiddlewareSilent(b *testing.B) {
	silent := tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider()})
	handled := silent.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	msg := newMessage("1")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = handled(msg)
	}
}

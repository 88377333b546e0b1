package tracing_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/outbox"
)

func TestPublisherPutsTheContextIntoTheMetadata(t *testing.T) {
	b := newBed(t)
	member, err := baggage.NewMember("tenant", "acme")
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)
	ctx, request := b.spans.Start(baggage.ContextWithBaggage(t.Context(), bag), "request")
	msg := newMessage("1")
	msg.Metadata = nil
	msg.SetContext(ctx)
	to := &publisher{}
	require.NoError(t, b.Publisher(to).Publish("orders", msg))
	request.End()

	create := b.one("create orders")
	b.isChild(create, b.one("request"))
	assert.Equal(t, trace.SpanKindProducer, create.SpanKind)
	assert.Equal(t, ctx, to.msgs[0].Context(), "the outbox finds the transaction in it")
	assert.Equal(t, message.Metadata{
		"traceparent": "00-" + create.SpanContext.TraceID().String() + "-" + create.SpanContext.SpanID().String() + "-01",
		"baggage":     "tenant=acme",
	}, to.seen[0])
	assert.Equal(t, map[string]string{
		"messaging.operation.name": "create", "messaging.operation.type": "create", "messaging.system": "watermill",
		"messaging.destination.name": "orders", "messaging.message.id": "1", "messaging.message.body.size": "39",
	}, attributes(create.Attributes))
}

func TestPublisherMakesASpanOfEachMessage(t *testing.T) {
	b := newBed(t)
	refused := errors.New("refused")
	to := &publisher{do: func([]*message.Message) error { return refused }}
	one, two := newMessage("1"), newMessage("2")
	assert.Same(t, refused, b.Publisher(to).Publish("orders", one, two))
	all := b.all("create orders")
	require.Len(t, all, 2)
	assert.NotEqual(t, one.Metadata["traceparent"], two.Metadata["traceparent"])
	for _, s := range all {
		assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: "refused"}, s.Status)
	}
}

// What was stored of a message is published as it is.
func TestPublisherLeavesAContextThatAMessageCarries(t *testing.T) {
	b := newBed(t)
	msg, create := b.made()
	before := maps.Clone(msg.Metadata)
	ctx, other := b.spans.Start(t.Context(), "redelivery")
	msg.SetContext(ctx)
	to := &publisher{}
	require.NoError(t, b.Publisher(to).Publish("orders", msg))
	other.End()
	assert.Equal(t, before, to.seen[0])
	send := b.one("send orders")
	b.isChild(send, create)
	assert.Equal(t, trace.SpanKindClient, send.SpanKind)
	require.Len(t, send.Links, 2)
	assert.Equal(t, create.SpanContext.SpanID(), send.Links[0].SpanContext.SpanID())
	assert.Equal(t, other.SpanContext().SpanID(), send.Links[1].SpanContext.SpanID(), "who sends it now")
}

func TestDecorateAndClose(t *testing.T) {
	b := newBed(t)
	to := &publisher{}
	decorated, err := b.Decorate(to)
	require.NoError(t, err)
	require.NoError(t, decorated.Publish("orders", newMessage("1")))
	require.NoError(t, decorated.Close())
	assert.True(t, to.closed)
	b.one("create orders")
}

func TestSenderChangesNothing(t *testing.T) {
	b := newBed(t)
	known, create := b.made()
	unknown := newMessage("2")
	unknown.Metadata = nil
	before := maps.Clone(known.Metadata)
	to := &publisher{}
	require.NoError(t, b.Sender(to).Publish("orders", known, unknown))
	assert.Same(t, known, to.msgs[0])
	assert.Same(t, unknown, to.msgs[1])
	assert.Equal(t, before, known.Metadata)
	assert.Nil(t, unknown.Metadata)
	assert.Equal(t, context.Background(), known.Context())
	all := b.all("send orders")
	require.Len(t, all, 2)
	b.isChild(all[0], create)
	assert.False(t, all[1].Parent.IsValid(), "it begins a trace")
	assert.Equal(t, trace.SpanKindClient, all[1].SpanKind)
}

func TestSenderTellsWhatBecameOfEachMessage(t *testing.T) {
	b := newBed(t)
	partial := &outbox.PartialError{Errors: []error{nil, errors.New("no queue"), nil}}
	to := &publisher{do: func([]*message.Message) error { return partial }}
	assert.Same(t, partial, b.Sender(to).Publish("orders", newMessage("1"), newMessage("2"), newMessage("3")))
	all := b.all("send orders")
	require.Len(t, all, 3)
	assert.Equal(t, codes.Unset, all[0].Status.Code)
	assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: "no queue"}, all[1].Status)
	assert.Equal(t, codes.Unset, all[2].Status.Code)

	b.kept.Reset()
	odd := &outbox.PartialError{Errors: []error{nil}} // says nothing of the second
	to.do = func([]*message.Message) error { return odd }
	assert.Same(t, odd, b.Sender(to).Publish("orders", newMessage("1"), newMessage("2")))
	for _, s := range b.all("send orders") {
		assert.Equal(t, codes.Error, s.Status.Code)
	}

	b.kept.Reset()
	toTwo := errors.Join(&outbox.PartialError{Errors: make([]error, 2)}, errors.New("the other broker is away"))
	to.do = func([]*message.Message) error { return toTwo }
	assert.Equal(t, toTwo, b.Sender(to).Publish("orders", newMessage("1"), newMessage("2")))
	for _, s := range b.all("send orders") {
		assert.Equal(t, codes.Error, s.Status.Code)
	}
}

func TestSenderEndsItsSpansWhereThePublisherPanics(t *testing.T) {
	b := newBed(t)
	to := &publisher{do: func([]*message.Message) error { panic("boom") }}
	assert.PanicsWithValue(t, "boom", func() { _ = b.Sender(to).Publish("orders", newMessage("1")) })
	assert.Equal(t, codes.Error, b.one("send orders").Status.Code)
}

func TestNewRelayRefusesADecoratedOutbox(t *testing.T) {
	b := newBed(t)
	_, err := outbox.NewRelay(nil, b.Sender(b.Publisher(&outbox.Publisher{})), outbox.RelayConfig{})
	assert.ErrorContains(t, err, "got the outbox itself")
}

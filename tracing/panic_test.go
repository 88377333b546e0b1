package tracing_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-go/millrace/tracing"
)

// stumbling is a propagator that panics at the second message.
type stumbling struct {
	propagation.TraceContext
	messages int
}

func (s *stumbling) Inject(ctx context.Context, carrier propagation.TextMapCarrier) {
	if s.messages++; s.messages == 2 {
		panic("a propagator")
	}
	s.TraceContext.Inject(ctx, carrier)
}

func TestAPropagatorThatPanicsLeavesNoSpanOpen(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	tracer := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept)), Propagator: &stumbling{},
	})
	to := &publisher{}
	all := []*message.Message{newMessage("1"), newMessage("2"), newMessage("3")}
	assert.PanicsWithValue(t, "a propagator", func() { _ = tracer.Publisher(to).Publish("orders", all...) })
	assert.Empty(t, to.msgs)
	assert.Len(t, kept.GetSpans(), 2)
}

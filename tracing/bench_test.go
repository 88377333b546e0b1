package tracing_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tracing"
)

// nowhere is where spans are exported to.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkDelivery is a delivery that carries a context, is received and completed, and is
// recorded by the SDK in batches, or not.
func BenchmarkDelivery(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"recorded": sdktrace.AlwaysSample(), "not": sdktrace.NeverSample()} {
		b.Run(name, func(b *testing.B) {
			provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(nowhere{}))
			b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
			tracer := tracing.New(tracing.Config{TracerProvider: provider})
			observer := tracer.InboxObserver()
			e := inbox.Event{Kind: inbox.KindCompleted, Consumer: "billing", MessageID: "7", UUID: "7", Topic: "orders", Type: "paid"}
			handled := tracer.Middleware(func(m *message.Message) ([]*message.Message, error) {
				observer.Observe(m.Context(), e)
				return nil, nil
			})
			msg := newMessage("7")
			msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			if name == "not" {
				msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = handled(msg)
			}
		})
	}
}

// BenchmarkPublish is a message that is made, stored and sent.
func BenchmarkPublish(b *testing.B) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}))
	b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
	tracer := tracing.New(tracing.Config{TracerProvider: provider})
	to := silent{}
	out, sender := tracer.Publisher(to), tracer.Sender(to)
	b.ReportAllocs()
	for b.Loop() {
		msg := newMessage("7")
		_ = out.Publish("orders", msg)
		_ = sender.Publish("orders", msg)
	}
}

type silent struct{}

func (silent) Publish(string, ...*message.Message) error { return nil }
func (silent) Close() error                              { return nil }

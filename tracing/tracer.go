package tracing

import (
	"context"
	"errors"
	"sync"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Config configures a [Tracer]. The zero value is right for most services.
type Config struct {
	// TracerProvider makes the spans. Defaults to the global one, of otel.SetTracerProvider.
	TracerProvider trace.TracerProvider

	// Propagator writes contexts to metadata and reads them. Defaults to the global one, of
	// otel.SetTextMapPropagator; if none is set before the first message, to W3C trace context and
	// baggage.
	Propagator propagation.TextMapPropagator

	// System is the messaging system in spans, such as "rabbitmq". Defaults to "watermill": neither
	// a publisher nor a message reveals the system behind it.
	System string
}

func (c *Config) setDefaults() {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.System == "" {
		c.System = "watermill"
	}
}

// Tracer makes spans of what happens to messages, and events of the decisions about them. It is
// safe for concurrent use; one serves a whole process.
type Tracer struct {
	config Config
	spans  trace.Tracer

	creates, sends, processes *operation

	once       sync.Once // the process may set its propagator after New
	propagator propagation.TextMapPropagator
	fields     []string // of metadata that the propagator reads
}

const scope = "github.com/millrace-go/millrace/tracing"

// New returns a Tracer.
func New(config Config) *Tracer {
	config.setDefaults()
	return &Tracer{
		config:    config,
		spans:     config.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		creates:   newOperation("create", config.System, semconv.MessagingOperationTypeCreate),
		sends:     newOperation("send", config.System, semconv.MessagingOperationTypeSend),
		processes: newOperation("process", config.System, semconv.MessagingOperationTypeProcess),
	}
}

func (t *Tracer) init() {
	t.propagator = t.config.Propagator
	if t.propagator == nil {
		t.propagator = otel.GetTextMapPropagator()
	}
	if len(t.propagator.Fields()) == 0 { // none is set
		t.propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	t.fields = t.propagator.Fields()
}

// carrier is the metadata of a message, created at the first write.
type carrier struct{ msg *message.Message }

func (c carrier) Get(key string) string { return c.msg.Metadata[key] }

func (c carrier) Set(key, value string) {
	if c.msg.Metadata == nil {
		c.msg.Metadata = message.Metadata{}
	}
	c.msg.Metadata[key] = value
}

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c.msg.Metadata))
	for key := range c.msg.Metadata {
		keys = append(keys, key)
	}
	return keys
}

// extract returns ctx with the context in metadata, and ctx itself if there is none.
func (t *Tracer) extract(ctx context.Context, metadata message.Metadata) context.Context {
	t.once.Do(t.init)
	for _, field := range t.fields {
		if _, some := metadata[field]; some {
			return t.propagator.Extract(ctx, propagation.MapCarrier(metadata))
		}
	}
	return ctx
}

// inject writes the context in ctx to the metadata of msg.
func (t *Tracer) inject(ctx context.Context, msg *message.Message) {
	t.once.Do(t.init)
	t.propagator.Inject(ctx, carrier{msg})
}

// origin returns the context that created a message, from its metadata.
func (t *Tracer) origin(metadata message.Metadata) (context.Context, bool) {
	ctx := t.extract(context.Background(), metadata)
	return ctx, trace.SpanContextFromContext(ctx).IsValid()
}

// named returns the name of a span.
func named(operation, topic string) string {
	if topic == "" {
		return operation
	}
	return operation + " " + plain(topic)
}

// fail marks a span as failed.
func fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	text := err.Error()
	if !utf8.ValidString(text) {
		text = plain(text)
		err = errors.New(text)
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, text)
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub/rabbitmq"
	"github.com/millrace-go/millrace/tracing"
)

// relay sends what is in the outbox to RabbitMQ. It may run several times.
func relay(ctx context.Context, db *sqlx.DB) error {
	t, err := newTelemetry(ctx, "relay")
	if err != nil {
		return err
	}
	publisher, err := rabbitmq.NewPublisher(queues(), rabbitmq.PublisherConfig{})
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(db, t.tracer.Sender(publisher), outbox.RelayConfig{
		Logger: watermill.NewSlogLogger(slog.Default()), Observers: []outbox.Observer{t.metrics.Relay(), t.tracer.RelayObserver()},
	})
	if err != nil {
		return err
	}
	// RabbitMQ refuses what no queue takes, and the relay may start before the consumers.
	if err := rabbitmq.Declare(queues(), "payments", "receipts"); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error { return serve(ctx, t.with("GET /", http.NotFound)) })
	return errors.Join(group.Wait(), publisher.Close(), t.stop(ctx))
}

// queues are quorum queues with dead letters, one for each topic.
func queues() amqp.Config {
	return rabbitmq.NewQueueConfig(os.Getenv("AMQP_URL"), rabbitmq.Queues{Quorum: true, DeadLetters: true})
}

// telemetry is what a process tells of itself.
type telemetry struct {
	registry *prometheus.Registry
	metrics  *metrics.Builder
	provider *trace.TracerProvider
	tracer   *tracing.Tracer
}

// newTelemetry sends traces where OTEL_EXPORTER_OTLP_ENDPOINT says.
func newTelemetry(ctx context.Context, service string) (*telemetry, error) {
	t := &telemetry{registry: prometheus.NewRegistry()}
	var err error
	if t.metrics, err = metrics.NewBuilder(t.registry, metrics.Config{}); err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	t.provider = trace.NewTracerProvider(trace.WithBatcher(exporter),
		trace.WithResource(resource.NewWithAttributes(semconv.SchemaURL, semconv.ServiceName(service))))
	t.tracer = tracing.New(tracing.Config{TracerProvider: t.provider, System: "rabbitmq"})
	return t, nil
}

// with serves the metrics beside h.
func (t *telemetry) with(pattern string, h http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc(pattern, h)
	return mux
}

func (t *telemetry) stop(ctx context.Context) error {
	return t.provider.Shutdown(context.WithoutCancel(ctx))
}

package bench_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tracing"
)

// BenchmarkObservers is P1's inbox with metrics and with traces, of which every tenth or every
// one is recorded, against itself without. What the SDK takes for a span that says nothing is
// measured beside it: no tracer can take less.
func BenchmarkObservers(b *testing.B) {
	db := database(b)
	plain := withInbox(b, db)
	ways := []way{
		{"metrics", watched(b, db.DB, nil, (*inbox.Store).Plugin)},
		{"metrics and a tenth of the traces", watched(b, db.DB, sdktrace.TraceIDRatioBased(0.1), (*inbox.Store).Plugin)},
		{"metrics and every trace", watched(b, db.DB, sdktrace.AlwaysSample(), (*inbox.Store).Plugin)},
	}
	plain.handle(b, 200)
	rates, ratios := series{}, map[string][]float64{}
	const floor = "the SDK's span alone"
	floored := append(slices.Clone(ways), way{floor, bare(b, db.DB, (*inbox.Store).Plugin)})
	for range pick(9, 1) {
		for _, way := range floored {
			settleDown(b, db)
			before := plain.flood(b, phase())
			rate := way.service.flood(b, phase())
			after := plain.flood(b, phase())
			rates.add("plain", (before+after)/2)
			rates.add(way.name, rate)
			ratios[way.name] = append(ratios[way.name], rate/((before+after)/2))
		}
		run(b, db, `TRUNCATE millrace_claims`)
	}
	for _, way := range ways {
		atLeast("observers: "+way.name, 0.97).judge(b, ratios[way.name],
			"with %.0f/s, without %.0f/s", median(rates[way.name]), median(rates["plain"]))
	}
	tell(fmt.Sprintf("observers: %s ratio=%.2f (turns %s)", floor, median(ratios[floor]), list(ratios[floor])))
}

type way struct {
	name    string
	service *service
}

// bare is withInbox in a middleware that makes a span of each delivery, and tells nothing of it.
func bare(b *testing.B, db *sqlx.DB, plugins ...func(*inbox.Store) message.RouterPlugin) *service {
	b.Helper()
	provider := everySpan(b, sdktrace.AlwaysSample())
	spans := provider.Tracer("bare")
	store := rig.NewStore(b, db, inbox.Config{WithoutPlugin: true})
	b.Cleanup(func() { _ = store.Close(context.WithoutCancel(b.Context())) })
	s := serve(b, transfer, func(router *message.Router) {
		router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				ctx, span := spans.Start(msg.Context(), "process")
				defer span.End()
				msg.SetContext(ctx)
				return h(msg)
			}
		})
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		for _, plugin := range plugins {
			router.AddPlugin(plugin(store))
		}
	})
	s.handle(b, 200)
	return s
}

// everySpan gives spans to the SDK's batches.
func everySpan(b *testing.B, sampler sdktrace.Sampler) *sdktrace.TracerProvider {
	b.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(nowhere{}))
	b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
	return provider
}

// BenchmarkObserversCPU is the processor time that observers add to a message, in a service
// whose database answers at once: a figure that other work on the machine hardly changes.
func BenchmarkObserversCPU(b *testing.B) {
	void := openSilent()
	b.Cleanup(func() { require.NoError(b, void.Close()) })
	store := rig.NewStore(b, void, inbox.Config{WithoutPlugin: true})
	plain := silentInbox(b, store)
	ways := map[string]*service{
		"metrics":                           watched(b, void, nil),
		"metrics and a tenth of the traces": watched(b, void, sdktrace.TraceIDRatioBased(0.1)),
		"metrics and every trace":           watched(b, void, sdktrace.AlwaysSample()),
		"the SDK's span alone":              bare(b, void),
	}
	plain.handle(b, 200)
	n := pick(2_000, 50)
	perMessage := func(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(n) }
	for name, way := range ways {
		var added, without []float64
		for range pick(9, 1) {
			before, with, after := cpuOf(b, plain, n), cpuOf(b, way, n), cpuOf(b, plain, n)
			without = append(without, perMessage(before+after)/2)
			added = append(added, perMessage(with)-perMessage(before+after)/2)
		}
		tell(fmt.Sprintf("observers/no-database: %s add %.2f µs of processor to %.1f µs a message", name, median(added), median(without)))
	}
	b.ReportMetric(0, "ns/op")
}

// watched is withInbox with all observers; without a sampler there are no traces.
func watched(b *testing.B, db *sqlx.DB, sampler sdktrace.Sampler, plugins ...func(*inbox.Store) message.RouterPlugin) *service {
	b.Helper()
	meters, err := metrics.NewBuilder(prometheus.NewRegistry(), metrics.Config{})
	require.NoError(b, err)
	observers := []inbox.Observer{meters.Inbox()}
	var outermost []message.HandlerMiddleware
	if sampler != nil {
		tracer := tracing.New(tracing.Config{TracerProvider: everySpan(b, sampler)})
		observers = append(observers, tracer.InboxObserver())
		outermost = append(outermost, tracer.Middleware)
	}
	store := rig.NewStore(b, db, inbox.Config{WithoutPlugin: true, Observers: observers})
	b.Cleanup(func() { _ = store.Close(context.WithoutCancel(b.Context())) })
	require.NoError(b, meters.WatchStore(store))
	s := serve(b, transfer, func(router *message.Router) {
		router.AddMiddleware(outermost...)
		router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
		for _, plugin := range plugins {
			router.AddPlugin(plugin(store))
		}
	})
	s.handle(b, 200)
	return s
}

// nowhere is where spans are exported to.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

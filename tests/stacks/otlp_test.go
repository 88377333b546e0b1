package stacks_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// byOTLP sends what Prometheus would read in registry to a collector.
func byOTLP(ctx context.Context, registry prometheus.Gatherer) (*sdk.MeterProvider, error) {
	exporter, err := otlpmetrichttp.New(ctx) // to OTEL_EXPORTER_OTLP_ENDPOINT
	if err != nil {
		return nil, err
	}
	bridge := bridge.NewMetricProducer(bridge.WithGatherer(registry))
	reader := sdk.NewPeriodicReader(exporter, sdk.WithProducer(bridge))
	return sdk.NewMeterProvider(sdk.WithReader(reader)), nil
}

// TestMetricsByOTLP: counters, histograms and the gauges of tables reach a collector with their names and labels.
func TestMetricsByOTLP(t *testing.T) {
	var mu sync.Mutex
	got := map[string]*metricspb.Metric{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		var request collectorpb.ExportMetricsServiceRequest
		assert.NoError(t, proto.Unmarshal(body, &request))
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range request.GetResourceMetrics() {
			for _, scope := range resource.GetScopeMetrics() {
				for _, m := range scope.GetMetrics() {
					got[m.GetName()] = m
				}
			}
		}
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)

	registry := prometheus.NewRegistry()
	m, err := metrics.NewBuilder(registry, metrics.Config{Timeout: rig.Patience})
	require.NoError(t, err)
	store, err := inbox.NewStore(testdb.On(t, "sqlite").DB, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
	require.NoError(t, err)
	require.NoError(t, m.WatchStore(store))
	provider, err := byOTLP(t.Context(), registry)
	require.NoError(t, err)
	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := inbox.Tx(msg.Context())
		return nil, err
	})
	for range 3 {
		_, err := handler(message.NewMessage("payment-1", nil))
		require.NoError(t, err)
	}
	require.NoError(t, store.Close(t.Context()))
	require.NoError(t, provider.Shutdown(t.Context()))

	mu.Lock()
	defer mu.Unlock()
	completed := got["millrace_inbox_completed_total"].GetSum()
	require.Len(t, completed.GetDataPoints(), 1)
	assert.InDelta(t, 1, completed.GetDataPoints()[0].GetAsDouble(), 0)
	assert.True(t, completed.GetIsMonotonic())
	assert.Equal(t, metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, completed.GetAggregationTemporality())
	label := completed.GetDataPoints()[0].GetAttributes()[0]
	assert.Equal(t, `consumer accounts`, label.GetKey()+" "+label.GetValue().GetStringValue())
	assert.EqualValues(t, 1, got["millrace_inbox_lag_seconds"].GetHistogram().GetDataPoints()[0].GetCount())
	assert.NotEmpty(t, got["millrace_inbox_table_rows"].GetGauge().GetDataPoints())
	scraped, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range scraped {
		assert.Contains(t, got, family.GetName())
	}
}

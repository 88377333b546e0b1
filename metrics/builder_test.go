package metrics_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
)

func TestNamesAreThoseThatPrometheusWants(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(full(t).registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// Whatever comes with messages, there is a bound to what they make.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{MaxValues: 10})
	for i := range 1000 {
		value := fmt.Sprintf("value %d", i)
		if i%7 == 0 {
			value = "\xff" + strings.Repeat(value, 100) // from outside comes anything
		}
		fire(b.builder.Inbox(), inbox.Event{
			Consumer: "billing", UUID: value, MessageID: value, Topic: value, Type: value, Reason: value, Count: 1,
			Err: fmt.Errorf("%s", value),
		})
		fireRelay(b.builder.Relay(), outbox.Event{Topic: value, UUID: value, Reason: value, Count: 1})
		b.builder.Shadow().ObserveShadow(t.Context(), "billing", value, "first")
	}
	for name, labels := range b.exposed() {
		for label, values := range labels {
			distinct := make(map[string]bool)
			for _, v := range values {
				distinct[v] = true
				assert.LessOrEqual(t, len(v), 255)
			}
			most := 25
			if label == "reason" || label == "result" || label == "age" {
				most = 60 // MaxValues is not theirs
			}
			assert.LessOrEqual(t, len(distinct), most, "%s{%s}", name, label)
			switch label {
			case "consumer", "event_type", "event", "topic", "reason", "result", "state", "table", "age", "by":
			default:
				assert.Fail(t, "a label that nobody has bounded", "%s{%s}", name, label)
			}
		}
	}
	assert.Contains(t, b.exposed()["millrace_inbox_duplicates_total"]["event_type"], "other")
	assert.Contains(t, b.exposed()["millrace_outbox_published_total"]["topic"], "other")
	families, err := b.registry.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == "millrace_inbox_duplicates_total" {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	assert.InDelta(t, 1000, sum, 0, "none is lost")
}

// Alerts name reasons and results: however few types a service allows, these have series of their own.
func TestReasonsAreNotLimited(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{MaxValues: 1})
	for _, e := range []inbox.Event{
		{Kind: inbox.KindParked, Reason: inbox.ReasonUnknownType},
		{Kind: inbox.KindReplayed, Reason: "ran although refused"},
		{Kind: inbox.KindBatch, Reason: inbox.ReasonAlone},
	} {
		e.Consumer = "billing"
		b.builder.Inbox().Observe(t.Context(), e)
	}
	exposed := b.exposed()
	assert.Contains(t, exposed["millrace_inbox_parked_total"]["reason"], inbox.ReasonUnknownType)
	assert.Contains(t, exposed["millrace_inbox_replayed_total"]["result"], "ran although refused")
	assert.Contains(t, exposed["millrace_inbox_batches_total"]["result"], inbox.ReasonAlone)
	for name, labels := range exposed {
		assert.NotContains(t, labels["reason"], "other", name)
		assert.NotContains(t, labels["result"], "other", name)
	}
}

func TestAnEmptyTypeIsOne(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	fire(b.builder.Inbox(), inbox.Event{Consumer: "billing"})
	assert.Equal(t, []string{"none"}, b.exposed()["millrace_inbox_duplicates_total"]["event_type"])
}

// Two Builders on one registry count together, and a second Store is refused in words.
func TestARegistryMayBeUsedTwice(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	second, err := metrics.NewBuilder(b.registry, metrics.Config{})
	require.NoError(t, err)
	for _, builder := range []*metrics.Builder{b.builder, second} {
		builder.Inbox().Observe(t.Context(), inbox.Event{Kind: inbox.KindReceived, Consumer: "billing"})
	}
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
		# HELP millrace_inbox_received_total Deliveries that a consumer took up.
		# TYPE millrace_inbox_received_total counter
		millrace_inbox_received_total{consumer="billing"} 2
	`), "millrace_inbox_received_total"))
	require.ErrorContains(t, second.WatchStore(b.store), "this registry watches a Store already")
	require.ErrorContains(t, second.WatchOutbox(b.out), "WrapRegistererWith")

	_, err = metrics.NewBuilder(prometheus.WrapRegistererWith(prometheus.Labels{"database": "b"}, b.registry), metrics.Config{})
	require.Error(t, err, "with a label, and without it")
	registry := prometheus.NewPedanticRegistry()
	builderOf := func(database string) (*metrics.Builder, error) {
		labels := prometheus.Labels{"database": database}
		return metrics.NewBuilder(prometheus.WrapRegistererWith(labels, registry), metrics.Config{})
	}
	for i, label := range []string{"a", "b", "b"} {
		builder, err := builderOf(label)
		require.NoError(t, err)
		fire(builder.Inbox(), inbox.Event{Consumer: "billing"})
		err = builder.WatchStore(b.store)
		assert.Equal(t, i == 2, err != nil, "%s: %v", label, err)
	}
	_, err = registry.Gather()
	require.NoError(t, err)
	other, err := metrics.NewBuilder(b.registry, metrics.Config{Namespace: "billing"})
	require.NoError(t, err)
	require.NoError(t, other.WatchStore(b.store))
}

func TestWrongSettingsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := metrics.NewBuilder(prometheus.NewRegistry(), metrics.Config{
		Namespace: "a-b", Interval: -1, Timeout: -1, CountTo: -1, MaxValues: -1, Buckets: []float64{2, 1},
	})
	require.Error(t, err)
	for _, field := range []string{"Namespace", "Interval", "Timeout", "CountTo", "MaxValues", "Buckets"} {
		assert.ErrorContains(t, err, field)
	}
	_, err = metrics.NewBuilder(nil, metrics.Config{})
	require.ErrorContains(t, err, "Registerer")
	b := newBed(t, metrics.Config{})
	require.ErrorContains(t, b.builder.WatchStore(nil), "Store")
	require.ErrorContains(t, b.builder.WatchOutbox(nil), "Publisher")
}

// Each delivery has one result, whatever becomes of it.
func TestEachDeliveryHasAResult(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	h := middleware.Inbox{Store: b.store, Consumer: "billing"}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "fails" {
			return nil, errBoom
		}
		return nil, nil
	})
	for _, sent := range []struct{ uuid, payload string }{{"paid", "x"}, {"paid", "x"}, {"paid", "y"}, {"", "without a key"}, {"fails", ""}} {
		_, err := h(message.NewMessage(sent.uuid, []byte(sent.payload)))
		assert.Equal(t, sent.uuid == "fails", err != nil, err)
	}
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
		# HELP millrace_inbox_claims_total Deliveries by result.
		# TYPE millrace_inbox_claims_total counter
		millrace_inbox_claims_total{consumer="billing",result="completed"} 1
		millrace_inbox_claims_total{consumer="billing",result="duplicate"} 1
		millrace_inbox_claims_total{consumer="billing",result="failed"} 1
		millrace_inbox_claims_total{consumer="billing",result="held"} 0
		millrace_inbox_claims_total{consumer="billing",result="outcome"} 0
		millrace_inbox_claims_total{consumer="billing",result="parked"} 2
		millrace_inbox_claims_total{consumer="billing",result="stale"} 0
	`), "millrace_inbox_claims_total"))
}

// Each kind of event that there is has a counter: whoever adds one to package inbox or
// outbox is told here.
func TestEveryKindOfEventIsCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	builder, err := metrics.NewBuilder(registry, metrics.Config{})
	require.NoError(t, err)
	figures := func() string {
		families, err := registry.Gather()
		require.NoError(t, err)
		return fmt.Sprint(families)
	}
	in := inbox.Event{Kind: inbox.KindReceived, Consumer: "billing", Reason: "r", Count: 1}
	builder.Inbox().Observe(t.Context(), in) // a consumer that is new changes the figures, too
	for _, in.Kind = range kinds[inbox.Kind]() {
		before := figures()
		builder.Inbox().Observe(t.Context(), in)
		assert.NotEqual(t, before, figures(), "inbox: %v", in.Kind)
	}
	out := outbox.Event{Topic: "orders", Count: 1, Err: errBoom}
	for _, out.Kind = range kinds[outbox.Kind]() {
		before := figures()
		builder.Relay().Observe(t.Context(), out)
		assert.NotEqual(t, before, figures(), "outbox: %v", out.Kind)
	}
}

// The claims of a consumer are those of all its epochs.
func TestClaimsOfTwoEpochs(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	for epoch, n := range []int{1000, 3, 2} {
		b.builder.Inbox().Observe(t.Context(), inbox.Event{
			Kind: inbox.KindClaims, Consumer: "billing", Epoch: epoch / 2, Reason: inbox.ReasonWeek, Count: n,
		})
	}
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
		# HELP millrace_inbox_aged_claims Completed claims by age, as the janitor saw them last.
		# TYPE millrace_inbox_aged_claims gauge
		millrace_inbox_aged_claims{age="7d",consumer="billing"} 5
	`), "millrace_inbox_aged_claims"))
}

func TestReplayedMessagesAreCountedByWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	for _, reason := range []string{"ran", "ran although refused", "refused", "duplicate", "suppressed", "suppressed 3 messages", "suppressed 4 messages"} {
		b.builder.Inbox().Observe(t.Context(), inbox.Event{Kind: inbox.KindReplayed, Consumer: "billing", Reason: reason})
	}
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
		# HELP millrace_inbox_replayed_total Replayed messages by result.
		# TYPE millrace_inbox_replayed_total counter
		millrace_inbox_replayed_total{consumer="billing",result="duplicate"} 1
		millrace_inbox_replayed_total{consumer="billing",result="ran"} 1
		millrace_inbox_replayed_total{consumer="billing",result="ran although refused"} 1
		millrace_inbox_replayed_total{consumer="billing",result="refused"} 1
		millrace_inbox_replayed_total{consumer="billing",result="suppressed"} 3
	`), "millrace_inbox_replayed_total"))
}

func TestBatchesAreCountedByHowTheyEnded(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	for _, e := range []inbox.Event{
		{Reason: inbox.ReasonHalved, Count: 100, Duration: 2 * time.Second},
		{Reason: inbox.ReasonCommitted, Count: 50}, {Reason: inbox.ReasonCommitted, Count: 50},
	} {
		e.Kind, e.Consumer = inbox.KindBatch, "billing"
		b.builder.Inbox().Observe(t.Context(), e)
	}
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`
		# HELP millrace_inbox_batches_total Tries to handle several messages in one transaction, by result.
		# TYPE millrace_inbox_batches_total counter
		millrace_inbox_batches_total{consumer="billing",result="alone"} 0
		millrace_inbox_batches_total{consumer="billing",result="committed"} 2
		millrace_inbox_batches_total{consumer="billing",result="halved"} 1
		millrace_inbox_batches_total{consumer="billing",result="named"} 0
	`), "millrace_inbox_batches_total"))
	families, err := b.registry.Gather()
	require.NoError(t, err)
	sums := map[string]float64{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			sums[f.GetName()] = h.GetSampleSum()
		}
	}
	assert.Equal(t, map[string]float64{"millrace_inbox_batch_messages": 100, "millrace_inbox_batch_gathering_seconds": 2}, sums)
}

// BenchmarkCompletedDelivery is what a delivery that was handled costs in events.
func BenchmarkCompletedDelivery(b *testing.B) {
	builder, err := metrics.NewBuilder(prometheus.NewRegistry(), metrics.Config{})
	require.NoError(b, err)
	o := builder.Inbox()
	received := inbox.Event{Kind: inbox.KindReceived, Consumer: "billing", UUID: "u", MessageID: "m", Topic: "orders", Type: "paid", Reason: "received"}
	completed := inbox.Event{Kind: inbox.KindCompleted, Consumer: "billing", UUID: "u", MessageID: "m", Topic: "orders", Type: "paid", Reason: "completed", Duration: time.Millisecond}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		for pb.Next() {
			o.Observe(ctx, received)
			o.Observe(ctx, completed)
		}
	})
}

func BenchmarkDuplicate(b *testing.B) {
	builder, err := metrics.NewBuilder(prometheus.NewRegistry(), metrics.Config{})
	require.NoError(b, err)
	o := builder.Inbox()
	received := inbox.Event{Kind: inbox.KindReceived, Consumer: "billing", UUID: "u", MessageID: "m", Topic: "orders", Type: "paid", Reason: "received"}
	duplicate := inbox.Event{Kind: inbox.KindDuplicate, Consumer: "billing", UUID: "u", MessageID: "m", Topic: "orders", Type: "paid", Reason: inbox.ReasonSettled}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		for pb.Next() {
			o.Observe(ctx, received)
			o.Observe(ctx, duplicate)
		}
	})
}

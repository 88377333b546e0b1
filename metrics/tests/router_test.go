package tests_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// bed is a service with all that is measured.
type bed struct {
	*testing.T
	db       *testdb.DB
	registry *prometheus.Registry
	store    *inbox.Store
	out      *outbox.Publisher
	relay    *outbox.Relay
	source   *rig.Feed
	broker   *rig.Publisher
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	b := &bed{T: t, db: db, registry: prometheus.NewPedanticRegistry(), source: rig.NewFeed(), broker: &rig.Publisher{}}
	m, err := metrics.NewBuilder(b.registry, metrics.Config{Interval: time.Nanosecond, Timeout: time.Minute})
	require.NoError(t, err)
	b.store = rig.NewStore(t, db.DB, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
	require.NoError(t, b.store.Migrate(t.Context()))
	b.out = rig.NewOutbox(t, db.DB, outbox.Config{})
	b.relay, err = outbox.NewRelay(db.DB, b.broker, outbox.RelayConfig{Observers: []outbox.Observer{m.Relay()}})
	require.NoError(t, err)
	require.NoError(t, m.WatchStore(b.store))
	require.NoError(t, m.WatchOutbox(b.out))
	return b
}

// run runs h behind a durable subscriber, with the outbox.
func (b *bed) run(h message.HandlerFunc) {
	b.Helper()
	sub, err := pubsub.Durable{
		Store: b.store, Consumer: "billing", MaxAttempts: 2, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		Poll: 20 * time.Millisecond,
	}.Decorate(b.source)
	require.NoError(b, err)
	router := rig.NewRouter(b)
	router.AddPlugin(b.store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: b.store, Outbox: b.out, Options: inbox.Options{Window: 5 * 24 * time.Hour}}.Middleware)
	router.AddHandler("billing", "orders", sub, "invoices", b.broker, h)
	go func() { _ = router.Run(context.WithoutCancel(b.Context())) }()
	<-router.Running()
	b.Cleanup(func() { _ = router.Close() })
}

func (b *bed) deliver(msg *message.Message) {
	b.Helper()
	msg = msg.Copy()
	b.source.Send(b, msg)
	assert.True(b, rig.Answer(b, msg), "it is acked")
}

func newMessage(kind, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	msg.Metadata.Set("name", kind)
	return msg
}

// expect compares metrics, without their comments, with what is gathered.
func (b *bed) expect(c assert.TestingT, want string) {
	got, err := b.registry.Gather()
	assert.NoError(c, err)
	seen := make(map[string]string)
	for _, f := range got {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			seen[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = strconv.FormatFloat(value, 'f', -1, 64)
		}
	}
	for line := range strings.Lines(want) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if found {
			assert.Equal(c, value, seen[name+"}"], name)
		}
	}
}

var errBoom = errors.New("boom")

func TestARouterIsMeasured(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.run(func(msg *message.Message) ([]*message.Message, error) {
			tx, err := inbox.Tx(msg.Context())
			if err != nil || tx == nil {
				return nil, err
			}
			switch string(msg.Payload) {
			case "fails":
				return nil, errBoom
			case "never":
				return nil, inbox.Terminal(errBoom)
			}
			return []*message.Message{message.NewMessage(watermill.NewUUID(), nil)}, nil
		})
		paid := newMessage("paid", "x")
		b.deliver(paid)
		b.deliver(paid)
		other := paid.Copy()
		other.Payload = []byte("y")
		b.deliver(other)
		b.deliver(newMessage("refunded", "fails"))
		b.deliver(newMessage("refunded", "never"))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			b.expect(c, `
				millrace_inbox_received_total{consumer=billing} 6
				millrace_inbox_completed_total{consumer=billing} 1
				millrace_inbox_processing_seconds{consumer=billing} 4
				millrace_inbox_claims_total{consumer=billing,result=completed} 1
				millrace_inbox_claims_total{consumer=billing,result=duplicate} 1
				millrace_inbox_claims_total{consumer=billing,result=failed} 3
				millrace_inbox_claims_total{consumer=billing,result=parked} 1
				millrace_inbox_lag_seconds{consumer=billing} 1
				millrace_inbox_event_types_total{consumer=billing,event=received,event_type=paid} 3
				millrace_inbox_event_types_total{consumer=billing,event=received,event_type=refunded} 3
				millrace_inbox_event_types_total{consumer=billing,event=completed,event_type=paid} 1
				millrace_inbox_event_types_total{consumer=billing,event=completed,event_type=refunded} 0
				millrace_inbox_event_types_total{consumer=billing,event=failed,event_type=refunded} 3
				millrace_inbox_event_types_total{consumer=billing,event=parked,event_type=paid} 1
				millrace_inbox_event_types_total{consumer=billing,event=parked,event_type=refunded} 2
				millrace_inbox_duplicates_total{consumer=billing,event_type=paid} 1
				millrace_inbox_collisions_total{consumer=billing} 1
				millrace_inbox_failures_total{consumer=billing,reason=handler error} 2
				millrace_inbox_failures_total{consumer=billing,reason=terminal} 1
				millrace_inbox_retries_total{consumer=billing,reason=handler error} 1
				millrace_inbox_parked_total{consumer=billing,reason=collision} 1
				millrace_inbox_parked_total{consumer=billing,reason=attempts} 1
				millrace_inbox_parked_total{consumer=billing,reason=terminal} 1
				millrace_inbox_messages{consumer=billing,state=parked} 2
				millrace_inbox_messages{consumer=billing,state=failed_terminal} 1
				millrace_inbox_messages{consumer=billing,state=due} 0
				millrace_inbox_oldest_pending_age_seconds{consumer=billing} 0
				millrace_inbox_paused{consumer=billing} 0
				millrace_inbox_served{consumer=billing} 1
				millrace_inbox_retention_seconds{consumer=billing} 604800
				millrace_inbox_window_seconds{consumer=billing} 432000
				millrace_inbox_unsettled_outcomes{consumer=billing} 0
				millrace_inbox_up{} 1
				millrace_outbox_up{} 1
				millrace_outbox_messages{state=pending} 1
				millrace_outbox_messages{state=parked} 0
				millrace_outbox_unowned_shards{} 0
			`)
		}, rig.Patience, 20*time.Millisecond)

		_, err := b.relay.RelayBatch(t.Context())
		require.NoError(t, err)
		b.expect(t, `
			millrace_outbox_published_total{topic=invoices} 1
			millrace_outbox_latency_seconds{topic=invoices} 1
			millrace_outbox_batch_messages{topic=invoices} 1
			millrace_outbox_messages{state=pending} 0
			millrace_outbox_unowned_shards{} 64
			millrace_outbox_relays{} 0
		`)
		problems, err := testutil.GatherAndLint(b.registry)
		require.NoError(t, err)
		assert.Empty(t, problems)

		require.NoError(t, admin.New(b.store).Pause(t.Context(), "billing", 0, admin.Operator{Name: "ann", Reason: "a test"}))
		rig.Purge(t, b.store)
		b.expect(t, `
			millrace_inbox_paused{consumer=billing} 1
			millrace_inbox_aged_claims{age=1h,consumer=billing} 1
			millrace_inbox_aged_claims{age=older,consumer=billing} 0
			millrace_inbox_purged_claims_total{} 0
		`)
	})
}

// What a message waited between its attempts is part of its lag, and not of the time in its handler.
func TestLagBeginsWithTheReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		const pause = 300 * time.Millisecond
		b := newBed(t, db)
		b.run(func(msg *message.Message) ([]*message.Message, error) {
			if inbox.Attempt(msg.Context()) == 1 {
				return nil, inbox.RetryAfter(errBoom, pause)
			}
			return nil, nil
		})
		b.deliver(newMessage("paid", "x"))
		sum := func(name string) float64 {
			families, err := b.registry.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() == name {
					return f.GetMetric()[0].GetHistogram().GetSampleSum()
				}
			}
			return 0
		}
		rig.Eventually(t, "it is handled", func() bool { return sum("millrace_inbox_lag_seconds") > 0 })
		assert.GreaterOrEqual(t, sum("millrace_inbox_lag_seconds"), 0.9*pause.Seconds(), "the clocks are the same")
	})
}

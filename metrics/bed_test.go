package metrics_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
)

var errBoom = errors.New("boom")

// bed is a registry with all that is measured, on tables without rows.
type bed struct {
	*testing.T
	db       *sqlx.DB
	registry *prometheus.Registry
	builder  *metrics.Builder
	store    *inbox.Store
	out      *outbox.Publisher
}

func newBed(t *testing.T, config metrics.Config) *bed {
	t.Helper()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "metrics.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	b := &bed{T: t, db: db, registry: prometheus.NewPedanticRegistry()}
	config.Timeout = cmp.Or(config.Timeout, rig.Patience) // a busy machine is no database that is down
	b.builder, err = metrics.NewBuilder(b.registry, config)
	require.NoError(t, err)
	b.store, err = inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{b.builder.Inbox()}})
	require.NoError(t, err)
	require.NoError(t, b.store.Migrate(t.Context()))
	b.out, err = outbox.NewPublisher(db, outbox.Config{Standalone: true})
	require.NoError(t, err)
	require.NoError(t, b.builder.WatchStore(b.store))
	require.NoError(t, b.builder.WatchOutbox(b.out))
	return b
}

// full is a bed on which everything has happened once.
func full(t *testing.T) *bed {
	t.Helper()
	b := newBed(t, metrics.Config{})
	queue, err := b.store.Queue(inbox.QueueConfig{Consumer: "billing"})
	require.NoError(t, err)
	require.NoError(t, queue.Put(t.Context(), "orders"))
	in := inbox.Event{
		Consumer: "billing", UUID: "u", MessageID: "m", Topic: "orders", Type: "paid", Reason: inbox.ReasonTooOld,
		Duration: time.Second, Count: 1, Attempt: 1,
	}
	out := outbox.Event{Topic: "orders", UUID: "u", Count: 1, Latency: time.Second, Duration: time.Second}
	for range 2 {
		fire(b.builder.Inbox(), in)
		fireRelay(b.builder.Relay(), out)
		b.builder.Shadow().ObserveShadow(t.Context(), "billing", "uuid", "duplicate")
		in.Err, out.Err = errBoom, errBoom // and failures
	}
	return b
}

// fire tells o of an event of each kind.
func fire(o inbox.Observer, e inbox.Event) {
	for _, e.Kind = range kinds[inbox.Kind]() {
		o.Observe(context.Background(), e)
	}
}

func fireRelay(o outbox.Observer, e outbox.Event) {
	for _, e.Kind = range kinds[outbox.Kind]() {
		o.Observe(context.Background(), e)
	}
}

// kinds are all that there are.
func kinds[K interface {
	~uint8
	fmt.Stringer
}]() (all []K) {
	for k := K(1); !strings.HasPrefix(k.String(), "Kind("); k++ {
		all = append(all, k)
	}
	return all
}

// exposed are the labels of each metric, with the values that were seen.
func (b *bed) exposed() map[string]map[string][]string {
	b.Helper()
	families, err := b.registry.Gather()
	require.NoError(b, err)
	all := make(map[string]map[string][]string)
	for _, f := range families {
		labels := make(map[string][]string)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
		all[f.GetName()] = labels
		if strings.HasSuffix(f.GetName(), "_seconds") || strings.HasSuffix(f.GetName(), "_messages") {
			if len(f.GetMetric()) > 0 && f.GetMetric()[0].GetHistogram() != nil {
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					all[f.GetName()+part] = labels
				}
			}
		}
	}
	return all
}

package metrics_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// hoarse is a logger that panics.
type hoarse struct{ watermill.NopLogger }

func (hoarse) Error(string, error, watermill.LogFields) { panic("a logger") }

// Prometheus collects in goroutines of its own, and waits for them.
func TestALookThatPanicsIsOneThatFailed(t *testing.T) {
	for how, trip := range map[string]func(){"panics": func() { panic("a driver") }, "exits": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			pool := faults.Open(t, testdb.On(t, "sqlite"))
			var armed atomic.Bool
			pool.Set(faults.Plan{Before: func(context.Context, string) error {
				if armed.Load() {
					trip()
				}
				return nil
			}})
			b := &bed{T: t, db: pool.DB, registry: prometheus.NewPedanticRegistry()}
			var err error
			b.builder, err = metrics.NewBuilder(b.registry, metrics.Config{Interval: time.Nanosecond, Logger: hoarse{}})
			require.NoError(t, err)
			b.store, err = inbox.NewStore(pool.DB, inbox.Config{})
			require.NoError(t, err)
			require.NoError(t, b.store.Migrate(t.Context()))
			b.out, err = outbox.NewPublisher(pool.DB, outbox.Config{})
			require.NoError(t, err)
			require.NoError(t, b.builder.WatchStore(b.store))
			require.NoError(t, b.builder.WatchOutbox(b.out))
			for _, healthy := range []float64{1, 0, 1} {
				armed.Store(healthy == 0)
				for _, part := range []string{"inbox", "outbox"} {
					up, found := b.value("millrace_" + part + "_up")
					assert.True(t, found)
					assert.InDelta(t, healthy, up, 0, part)
				}
			}
			for _, part := range []string{"inbox", "outbox"} {
				failures, _ := b.value("millrace_" + part + "_look_failures_total")
				assert.Positive(t, failures, part)
			}
		})
	}
}

// A driver that does not heed its context, such as lib/pq, must not hold up the scrape of a whole process.
func TestADriverThatDoesNotHeedItsContext(t *testing.T) {
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		pool := faults.Open(t, db)
		b := &bed{T: t, registry: prometheus.NewPedanticRegistry()}
		var err error
		b.builder, err = metrics.NewBuilder(b.registry, metrics.Config{Interval: time.Nanosecond, Timeout: 5 * time.Second})
		require.NoError(t, err)
		b.store = rig.NewStore(t, pool.DB, inbox.Config{})
		require.NoError(t, b.store.Migrate(t.Context()))
		require.NoError(t, b.builder.WatchStore(b.store))
		up := func() float64 { up, _ := b.value("millrace_inbox_up"); return up }
		rig.Eventually(t, "the tables are read", func() bool { return up() == 1 })

		hangs, looks := make(chan struct{}), atomic.Int32{}
		pool.Set(faults.Plan{Before: func(context.Context, string) error {
			looks.Add(1)
			<-hangs
			return nil
		}})
		var answers []<-chan float64
		for range 8 {
			answer := make(chan float64, 1)
			go func() { answer <- up() }()
			answers = append(answers, answer)
		}
		for _, answer := range answers {
			assert.Zero(t, rig.Within(t, answer, "a scrape is not answered"))
		}
		assert.EqualValues(t, 1, looks.Load(), "a look that goes on keeps others from beginning")
		failures, _ := b.value("millrace_inbox_look_failures_total")
		assert.GreaterOrEqual(t, failures, 8.0)
		pool.Set(faults.Plan{})
		close(hangs)
		rig.Eventually(t, "the tables are read again", func() bool { return up() == 1 })
	})
}

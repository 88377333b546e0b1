package metrics_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/tests/rig"
)

// value returns what a metric without labels has, and whether it is there.
func (b *bed) value(name string) (value float64, found bool) {
	b.Helper()
	families, err := b.registry.Gather()
	require.NoError(b, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue(), true
		}
	}
	return 0, false
}

func TestADatabaseThatFailsTellsNothingOld(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{Interval: time.Nanosecond})
	up, _ := b.value("millrace_inbox_up")
	assert.InDelta(t, 1, up, 0)
	_, found := b.value("millrace_inbox_table_rows")
	assert.True(t, found)
	require.NoError(t, b.db.Close())
	for _, part := range []string{"inbox", "outbox"} {
		up, found := b.value("millrace_" + part + "_up")
		assert.True(t, found)
		assert.Zero(t, up)
		failures, _ := b.value("millrace_" + part + "_look_failures_total")
		assert.Positive(t, failures)
	}
	for _, figure := range []string{"inbox_table_rows", "outbox_messages", "outbox_unowned_shards"} {
		_, found := b.value("millrace_" + figure)
		assert.False(t, found, figure)
	}
}

// However many scrape, and however often, there is one look in an interval.
func TestOneLookServesAllScrapes(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{Interval: time.Hour})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := b.registry.Gather()
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, b.db.Close())
	n, err := testutil.GatherAndCount(b.registry, "millrace_outbox_messages")
	require.NoError(t, err)
	assert.Equal(t, 4, n, "from the first look")
	up, _ := b.value("millrace_inbox_up")
	assert.InDelta(t, 1, up, 0)
}

// A pool without a free connection must not hold up the scrape.
func TestALookEndsInTime(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{Interval: time.Nanosecond, Timeout: 200 * time.Millisecond})
	b.db.SetMaxOpenConns(1)
	conn, err := b.db.Conn(t.Context()) // the service has the only one
	require.NoError(t, err)
	up, found := b.value("millrace_inbox_up")
	assert.True(t, found)
	assert.Zero(t, up)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool {
		up, _ := b.value("millrace_inbox_up")
		return up == 1
	}, rig.Patience, 10*time.Millisecond)
}

// Consumers whose names Prometheus cannot tell apart must not fail the scrape of a whole process.
func TestNamesThatAreHardToTellApart(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{})
	long := strings.Repeat("x", 254)
	for _, name := range []string{long + "1", long + "2", "not text \xff", "not text \xfe"} {
		queue, err := b.store.Queue(inbox.QueueConfig{Consumer: name})
		require.NoError(t, err)
		require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage("order-1", nil)))
	}
	families, err := b.registry.Gather()
	require.NoError(t, err)
	due := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "millrace_inbox_messages" && m.GetLabel()[1].GetValue() == "due" {
				due[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	assert.Equal(t, map[string]float64{long + "1": 1, long + "2": 1, "not text ?": 2}, due)
}

// An epoch that is over stays as it was, and must not say for ever that the consumer is paused.
func TestAnEpochThatIsOverIsNotPaused(t *testing.T) {
	t.Parallel()
	b := newBed(t, metrics.Config{Interval: time.Nanosecond})
	by := admin.Operator{Name: "ada", Reason: "the bank is down"}
	paused := func() float64 {
		value, found := b.value("millrace_inbox_paused")
		require.True(t, found)
		return value
	}
	for epoch := range 2 {
		queue, err := b.store.Queue(inbox.QueueConfig{Consumer: "billing", Epoch: epoch})
		require.NoError(t, err)
		require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage("order-1", nil)))
		assert.InDelta(t, 0, paused(), 0)
		require.NoError(t, admin.New(b.store).Pause(t.Context(), "billing", epoch, by))
		assert.InDelta(t, 1, paused(), 0)
	}
	require.NoError(t, admin.New(b.store).Resume(t.Context(), "billing", 1, by))
	assert.InDelta(t, 0, paused(), 0, "as the runbook has it resumed")
	_, err := b.db.ExecContext(t.Context(), `UPDATE millrace_consumers SET served_until = ? WHERE epoch = 0`, time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, err)
	assert.InDelta(t, 1, paused(), 0, "it is not over: a process serves it")
}

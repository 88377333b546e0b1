package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// batch is a pump that works once, and whose looks fail.
type batch struct {
	*pump
	began time.Time
}

func newBatch(t *testing.T, drain time.Duration) batch {
	p := newTestPump(t, oneLane(RelayConfig{Drain: drain}))
	p.reader, p.once = newReader(), true
	return batch{p, time.Now()}
}

// fails has a look fail that began after some time and took some, and reports whether the batch gives up.
func (b batch) fails(k kind, after, took time.Duration) bool {
	at := b.began.Add(after)
	b.readFailed(at.Add(took), &reading{
		kind: k, epoch: b.reader.epoch, began: at, limit: min(b.reader.most, b.config.Batch), err: errDatabase,
	})
	return b.beaten
}

// TestRelayBatchGivesUpAfterDrain: what works meanwhile does not hide what fails each time.
func TestRelayBatchGivesUpAfterDrain(t *testing.T) {
	b := newBatch(t, 10*time.Second)
	for s := range time.Duration(10) {
		require.False(t, b.fails(pending, s*time.Second, 0), "after %d s", s)
		require.False(t, b.fails(due, s*time.Second, 0))
		b.took(&reading{kind: due, epoch: b.reader.epoch})
	}
	assert.False(t, b.fails(due, 10*time.Second, 0))
	assert.True(t, b.fails(pending, 10*time.Second, 0))
}

func TestRunDoesNotGiveUp(t *testing.T) {
	b := newBatch(t, time.Second)
	b.once = false
	for s := range time.Duration(10) {
		assert.False(t, b.fails(pending, s*time.Second, 0))
	}
}

// While a broker is slow, no look begins. Two that fail before and after that are no outage.
func TestSingleFailuresOfALookAreNoOutage(t *testing.T) {
	b := newBatch(t, 10*time.Second)
	assert.False(t, b.fails(pending, 0, 0))
	assert.False(t, b.fails(pending, time.Hour, 0))
	assert.True(t, b.fails(pending, time.Hour+6*time.Second, 0))

	b = newBatch(t, time.Second) // less than the longest pause
	assert.False(t, b.fails(pending, 0, 0))
	assert.False(t, b.fails(pending, time.Hour, 0))
}

// TestALookOfLargeMessagesBecomesSmaller: one halving is no more than what Drain leaves time for.
func TestALookOfLargeMessagesBecomesSmaller(t *testing.T) {
	for _, kind := range []kind{due, pending, keys} {
		b := newBatch(t, 10*time.Second)
		after := time.Duration(0)
		for range 5 {
			require.Greater(t, b.reader.most, 1)
			require.False(t, b.fails(kind, after, lookTimeout))
			after += lookTimeout + time.Second
		}
		require.Equal(t, 1, b.reader.most)
		assert.False(t, b.fails(kind, after, lookTimeout), "this one could be no smaller")
		assert.True(t, b.fails(kind, after+lookTimeout+time.Second, lookTimeout), "a lock, for instance")
	}
}

// Small messages, which another kind of look finds, make the next look of this kind larger again.
func TestALookThatBecomesNoSmallerEndsABatch(t *testing.T) {
	b := newBatch(t, 10*time.Second)
	for try := range time.Duration(20) {
		b.reader.most = firstLook
		if b.fails(pending, try*time.Minute, lookTimeout) {
			return
		}
	}
	t.Fatal("the batch does not give up")
}

// A cron job would take what it left for done.
func TestABatchThatIsToldToEndSaysSo(t *testing.T) {
	r := newTestRelay(t, oneLane(RelayConfig{Batch: 5}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.to = publishing(func(string, ...*message.Message) error { cancel(); return nil })
	heldOf(t, r, "t", 20, 20)
	n, err := r.RelayBatch(ctx)
	assert.Positive(t, n)
	assert.ErrorIs(t, err, context.Canceled)
}

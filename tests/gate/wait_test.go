package gate_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// countReads counts from now on how often a version is asked for.
func countReads(pool *faults.Faults) *atomic.Int64 {
	var reads atomic.Int64
	pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
		if strings.HasPrefix(strings.TrimSpace(call), "SELECT") && strings.Contains(call, "millrace_versions") {
			reads.Add(1)
		}
		return nil
	}})
	return &reads
}

// However many messages wait for an aggregate, one of them asks the database for all, and
// an advance wakes the next one only.
func TestWaitingAsksLittle(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		const waiting = 60
		b := newBed(t, db)
		pool := faults.Open(t, db)
		h := b.gated(b.newStore(pool.DB, inbox.Config{}),
			millrace.VersionGate{OnGap: inbox.GapFail, GapWait: time.Minute}, handler)
		var all sync.WaitGroup
		ended := make(chan error, waiting)
		for v := range int64(waiting) {
			all.Go(func() {
				_, err := h(change("a", v+2))
				ended <- err
			})
		}
		rig.Eventually(b, "all wait", func() bool { return b.events.Count("gap") >= waiting })
		reads := countReads(pool)
		must(t, h, change("a", 1))
		all.Wait()
		for range waiting {
			require.NoError(t, <-ended)
		}
		assert.Equal(t, upTo(waiting+1), b.applied("a"))
		assert.Less(t, reads.Load(), int64(10*waiting), "reads of the version for %d messages", waiting)
	})
}

// The one who asks gives up, and another one asks from then on: it notices what another
// process applies.
func TestWaitingGoesOnWithoutTheOneWhoAsked(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		gate := millrace.VersionGate{OnGap: inbox.GapFail, GapWait: time.Minute}
		h := b.gated(b.newStore(pool.DB, inbox.Config{}), gate, handler)
		reads := countReads(pool)
		deliver := func(ctx context.Context, version int64) <-chan error {
			end := make(chan error, 1)
			msg := change("a", version)
			msg.SetContext(ctx)
			go func() {
				_, err := h(msg)
				end <- err
			}()
			return end
		}
		ctx, giveUp := context.WithCancel(t.Context())
		first := deliver(ctx, 3)
		rig.Eventually(b, "the first asks", func() bool { return reads.Load() >= 5 })
		second := deliver(t.Context(), 2)
		rig.Eventually(b, "the second waits", func() bool { return b.events.Count("gap") == 2 })
		giveUp()
		require.ErrorIs(t, <-first, context.Canceled)

		must(t, b.gated(b.process(), gate, handler), change("a", 1))
		require.NoError(t, rig.Within(t, second, "nobody asks any more"))
		assert.Equal(t, upTo(2), b.applied("a"))
	}))
}

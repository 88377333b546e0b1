package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A relay that has its share asks the database for it now and then, and not all the time.
func TestASettledRelayRestsBetweenHeartbeats(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		const watched = 2 * time.Second
		p := newPost(t, db)
		m := p.member("one")
		p.shared(m)
		var n atomic.Int64
		m.db.Set(on(func(context.Context) error { n.Add(1); return nil }, beats...))
		<-time.After(watched)
		t.Logf("%d heartbeats in %v", n.Load(), watched)
		assert.LessOrEqual(t, n.Load(), int64(4))
	})
}

// The shards are many, but one statement takes them all, and one gives up what another relay is to have.
func TestShardsAreTakenAndGivenUpTogether(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		m := p.prepare("one")
		var n atomic.Int64
		m.db.Set(on(func(context.Context) error { n.Add(1); return nil }, claims...))
		m.running = start(t, m.Relay)
		p.shared(m)
		assert.EqualValues(t, 1, n.Load())
		p.shared(m, p.member("two"))
		assert.EqualValues(t, 2, n.Load())
	})
}

// Relays that join share the work; one that is stopped leaves it to the others at once,
// and not when its lease ends.
func TestAStoppedRelayIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		first := p.member("first", leased(time.Minute))
		second := p.member("second", leased(time.Minute))
		p.shared(first, second)

		require.NoError(t, first.stop())
		stopped := time.Now()
		_, all := p.spread(32, 1)
		p.broker.awaitAll(t, all)
		took := time.Since(stopped)
		t.Logf("all was sent %v after the stop", took.Round(10*time.Millisecond))
		assert.Less(t, took, 30*time.Second, "the lease is a minute")
		p.shared(second)
		p.onceEach()
	})
}

// The answer to the taking of shards gets lost. The relay owns them, and works on them.
func TestShardsTakenWithoutAnAnswerAreWorkedOn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		p := newPost(t, db)
		m := p.prepare("one")
		var lost atomic.Int64
		lose := func(ctx context.Context, call string) error {
			if says(call, claims...) && lost.Add(1) == 1 {
				return faults.ErrLost
			}
			return nil
		}
		m.db.Set(faults.Plan{After: lose})
		m.running = start(t, m.Relay)
		_, all := p.spread(64, 1)
		p.broker.awaitAll(t, all)
		assert.Positive(t, lost.Load(), "no answer was lost")
		p.shared(m)
		p.shared(m, p.member("two"))
	})
}

// The database hangs on one statement of the relay's keeper, as on a connection that died
// without a word. The relay does not hang with it.
func TestAStatementWithoutAnswerStopsNoRelay(t *testing.T) {
	t.Parallel()
	for _, s := range testdb.Sample(t, 2, []struct {
		name  string
		words []string
	}{
		{"make the shards", []string{"INTO millrace_outbox_layout"}},
		{"register", []string{"INTO millrace_outbox_relays"}},
		{"beat", beats},
		{"forget the dead", []string{"SELECT COUNT(*) FROM millrace_outbox_relays"}},
		{"read the relays", []string{"SELECT token FROM millrace_outbox_relays"}},
		{"take shards", claims},
	}) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := newPost(t, testdb.On(t, "sqlite"))
			m := p.prepare("one", leased(5*time.Second)) // it waits for half of that
			var hung atomic.Int64
			m.db.Set(on(func(ctx context.Context) error {
				if hung.Add(1) > 1 {
					return nil
				}
				<-ctx.Done()
				return fmt.Errorf("no answer: %w", ctx.Err())
			}, s.words...))
			m.running = start(t, m.Relay)
			rig.Eventually(p, "it was tried again", func() bool { return hung.Load() > 1 })
			p.shared(m)
			_, all := p.spread(16, 1)
			p.broker.awaitAll(t, all)
		})
	}
}

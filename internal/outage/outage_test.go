package outage_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/outage"
)

func enter(t *testing.T, b *outage.Breaker) outage.Pass {
	t.Helper()
	began := time.Now()
	pass, up := b.Enter(t.Context())
	require.True(t, up)
	require.Equal(t, began, time.Now(), "it waited")
	return pass
}

func TestPausesGrowWithinTheirBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		longest, jittered := outage.First, false
		for probe := range 12 {
			pass := enter(t, &b)
			began := time.Now()
			assert.Equal(t, probe == 0, pass.Down(t.Context()), "only the first begins the outage")
			waited := time.Since(began)
			assert.GreaterOrEqual(t, waited, longest/2, "probe %d", probe)
			assert.LessOrEqual(t, waited, longest, "probe %d", probe)
			jittered = jittered || waited != longest && waited != longest/2
			longest = min(2*longest, outage.Longest)
		}
		assert.Equal(t, outage.Longest, longest)
		assert.True(t, jittered)
	})
}

func TestOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		enter(t, &b).Down(t.Context())
		probe := enter(t, &b)
		for range 10 {
			began := time.Now()
			_, up := b.Enter(t.Context())
			assert.False(t, up, "a second probe")
			assert.GreaterOrEqual(t, time.Since(began), outage.First/2)
			assert.LessOrEqual(t, time.Since(began), outage.First)
		}
		probe.Down(t.Context())
		enter(t, &b).Cancel()
		enter(t, &b).Cancel() // one that learnt nothing makes room at once
	})
}

func TestAProbeThatYieldsIsLikeACallFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		pass, up := b.TryEnter()
		require.True(t, up)
		assert.False(t, pass.Probes())
		pass.Down(t.Context())

		yielded := enter(t, &b)
		require.True(t, yielded.Probes())
		began := time.Now()
		_, up = b.TryEnter()
		assert.False(t, up, "a second probe")
		assert.Equal(t, began, time.Now(), "it waited")
		yielded.Yield()
		assert.False(t, yielded.Probes())
		probe, up := b.TryEnter()
		require.True(t, up)
		require.True(t, probe.Probes())
		yielded.Cancel()
		_, up = b.TryEnter()
		assert.False(t, up, "a second probe, since who had yielded ended")
		assert.True(t, yielded.Up())
		_, up = b.TryEnter()
		assert.True(t, up)
	})
}

func TestWhoBeginsAnOutageHoldsTheProbesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		first := enter(t, &b)
		go first.Down(t.Context())
		synctest.Wait()
		began := time.Now()
		_, up := b.Enter(t.Context())
		assert.False(t, up)
		assert.GreaterOrEqual(t, time.Since(began), outage.First/2)
	})
}

func TestRecoveryWakesTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		late := enter(t, &b)
		for range 8 { // long pauses
			enter(t, &b).Down(t.Context())
		}
		probe := enter(t, &b)
		const waiting = 20
		woken := make(chan bool, waiting)
		for range waiting {
			go func() {
				_, up := b.Enter(t.Context())
				woken <- up
			}()
		}
		paused := make(chan bool, 1)
		go func() { paused <- late.Down(t.Context()) }()
		synctest.Wait()
		began := time.Now()
		probe.Up()
		for range waiting {
			assert.True(t, <-woken)
		}
		assert.False(t, <-paused, "it did not begin the outage")
		assert.Equal(t, began, time.Now(), "they slept on")

		enter(t, &b)
		again := time.Now()
		assert.True(t, enter(t, &b).Down(t.Context()), "a new outage")
		assert.LessOrEqual(t, time.Since(again), outage.First, "which begins with the shortest pause")
	})
}

func TestAProbeOfAnEarlierOutageDoesNotLetASecondIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		slow := enter(t, &b)
		enter(t, &b).Down(t.Context())
		stale := enter(t, &b) // probes the first outage
		slow.Up()             // which ends by a call from before it
		enter(t, &b).Down(t.Context())
		probe := enter(t, &b) // probes the second
		stale.Cancel()
		_, up := b.Enter(t.Context())
		assert.False(t, up, "a second probe")
		probe.Up()
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		enter(t, &b).Down(ctx)
		probe := enter(t, &b)
		_, up := b.Enter(ctx)
		assert.False(t, up)
		assert.Equal(t, began, time.Now())
		probe.Up()
	})
}

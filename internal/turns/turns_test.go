package turns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/turns"
)

func take(t *testing.T, all *turns.Turns, key string, hash int64) turns.Turn {
	t.Helper()
	turn, settled, err := all.Take(t.Context(), key, hash)
	require.NoError(t, err)
	require.False(t, settled)
	return turn
}

func TestTurnsComeInTheOrderOfAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 20
		var all turns.Turns
		var order []int
		first := take(t, &all, "k", 1)
		for i := range waiting {
			go func() {
				turn, settled, err := all.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				assert.False(t, settled)
				order = append(order, i) // the turn excludes the others
				turn.Fail()
			}()
			synctest.Wait()
		}
		require.Empty(t, order, "nobody goes before the first has ended")
		first.Fail()
		synctest.Wait()
		want := make([]int, waiting)
		for i := range want {
			want[i] = i
		}
		require.Equal(t, want, order)
		require.Zero(t, all.Len())
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	var all turns.Turns
	a, b := take(t, &all, "a", 1), take(t, &all, "b", 1)
	a.Fail()
	b.Fail()
	require.Zero(t, all.Len())
}

func TestSettleAnswersEqualHashesAndAnotherHashLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		var mu sync.Mutex
		var answered, led []int64
		first := take(t, &all, "k", 1)
		for _, hash := range []int64{1, 2, 1, 2, 1} {
			go func() {
				turn, settled, err := all.Take(t.Context(), "k", hash)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				if settled {
					answered = append(answered, hash)
					return
				}
				led = append(led, hash)
				turn.Settle(hash)
			}()
			synctest.Wait()
		}
		first.Settle(1)
		synctest.Wait()
		// The second settles the key for 2, so the third must look for itself, and so on.
		require.Equal(t, []int64{1}, answered)
		require.Equal(t, []int64{2, 1, 2, 1}, led)
		require.Zero(t, all.Len())
	})
}

func TestFailureAnswersNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		led := 0
		first := take(t, &all, "k", 1)
		for range 3 {
			go func() {
				turn, settled, err := all.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				assert.False(t, settled)
				led++
				turn.Fail()
			}()
		}
		synctest.Wait()
		first.Fail()
		synctest.Wait()
		require.Equal(t, 3, led)
	})
}

func TestAFailureAfterASettlementIsNotTakenForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		first := take(t, &all, "k", 1)
		other := make(chan turns.Turn, 1)
		go func() { other <- take(t, &all, "k", 2) }()
		synctest.Wait()
		third := make(chan bool, 1)
		go func() {
			turn, settled, err := all.Take(t.Context(), "k", 1)
			assert.NoError(t, err)
			if !settled {
				turn.Fail()
			}
			third <- settled
		}()
		synctest.Wait()
		first.Settle(1)
		(<-other).Fail()
		require.False(t, <-third, "the last to end the key failed")
		require.Zero(t, all.Len())
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		first := take(t, &all, "k", 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, _, err := all.Take(ctx, "k", 1)
			gone <- err
		}()
		synctest.Wait()
		next := make(chan turns.Turn, 1)
		go func() { next <- take(t, &all, "k", 1) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		first.Fail()
		(<-next).Fail() // the turn went past the one who left
		require.Zero(t, all.Len())
	})
}

// Whoever holds a turn holds it alone, nobody is left waiting, and nothing stays behind.
func TestTurnsUnderLoad(t *testing.T) {
	const keys, workers, rounds = 5, 32, 300
	var all turns.Turns
	var holders [keys]atomic.Int32
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range rounds {
				n := random.IntN(keys)
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(3) == 0 {
					go cancel()
				}
				turn, settled, err := all.Take(ctx, fmt.Sprint(n), int64(random.IntN(2)))
				if err != nil || settled {
					cancel()
					continue
				}
				if others := holders[n].Add(1); others != 1 {
					t.Errorf("%d hold the turn", others)
				}
				holders[n].Add(-1)
				if random.IntN(2) == 0 {
					turn.Fail()
				} else {
					turn.Settle(int64(random.IntN(2)))
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, all.Len())
}

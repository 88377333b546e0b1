package gate_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A message is held in one process at the instant at which its predecessor is applied in
// another: it is seen by one of the two.
func TestWakeUpRace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		stores := [2]*inbox.Store{b.process(), b.process()}
		var handlers [2]message.HandlerFunc
		for i, store := range stores {
			b.queued(store)
			handlers[i] = b.gated(store, millrace.VersionGate{}, handler)
		}
		n := testdb.Rounds(250, 10_000)
		todo := make(chan int, n)
		for i := range n {
			todo <- i
		}
		close(todo)
		var hands sync.WaitGroup
		for range 8 {
			hands.Go(func() {
				for i := range todo {
					b.race(handlers, i)
				}
			})
		}
		hands.Wait()
		require.Zero(t, b.stuck(), "held although the predecessor was applied")
		assert.Zero(t, b.open(admin.Held))
		assert.Equal(t, n, b.count(`SELECT COUNT(*) FROM applied WHERE version = 1`))
		held := b.events.Count("held")
		t.Logf("%d races, %d successors held", n, held)
		assert.Equal(t, held, b.open(admin.Received))
		assert.Equal(t, n-held, b.count(`SELECT COUNT(*) FROM applied WHERE version = 2`))
		assert.Positive(t, held)
		assert.Less(t, held, n, "both orders were seen")
	}))
}

// race delivers two versions of an aggregate at once, every other one of an aggregate that
// is known already.
func (b *bed) race(handlers [2]message.HandlerFunc, i int) {
	aggregate := fmt.Sprint("race ", i)
	pair := [2]*message.Message{change(aggregate, 1), change(aggregate, 2)}
	var start, both sync.WaitGroup
	start.Add(1)
	for side, msg := range pair {
		both.Go(func() {
			start.Wait()
			_, err := handlers[(side+i)%2](msg)
			assert.NoError(b, err)
		})
	}
	start.Done()
	both.Wait()
}

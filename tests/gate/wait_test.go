package gate_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
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

// The wait for an aggregate that another process works on has a bound of its own: it is no attempt, and
// takes nothing from the handler's time. Messages of one process wait for each other in memory, and SQLite
// has one writer.
func TestWaitingForAnAggregateOfAnotherProcess(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		finish := b.slowly(millrace.VersionGate{}, handler, change("a", 1))
		// On MariaDB a statement that was given up goes on waiting, with the claim, for so long.
		abandoned := testdb.FrozenHosts(time.Minute, time.Second)
		once := millrace.Inbox{Store: b.process(abandoned), Consumer: consumer, Timeout: time.Minute, Options: inbox.Options{TwinWait: 300 * time.Millisecond}}
		queue := rig.Queue(b, once.Store, inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Millisecond, MaxAttempts: 1})
		require.NoError(t, queue.Put(t.Context(), "changes", change("a", 2)))

		leased := rig.Take(b, queue, 1)[0]
		msg, err := leased.Message(t.Context())
		require.NoError(t, err)
		b.isTold(once.Middleware(millrace.VersionGate{}.Middleware(handler)), msg)
		require.NoError(t, leased.Fail(t.Context()))
		assert.Equal(t, inbox.ReasonNotTried, b.events.Last("retried").Reason)
		assert.Zero(t, b.events.Last("retried").Attempt)
		assert.Equal(t, 1, b.open(admin.FailedRetryable))

		rig.Eventually(t, "what was given up waits no more", func() bool { return b.db.Waiting(t, "millrace_versions") == 0 })
		once.Store, once.TwinWait = b.process(), rig.Patience
		var deadline time.Time
		patient := once.Middleware(millrace.VersionGate{}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			deadline, _ = msg.Context().Deadline()
			return handler(msg)
		}))
		called, ended := time.Now(), rig.Handle(patient, change("a", 2))
		b.db.UntilWaiting(t, 1, "millrace_versions")
		const while = time.Second
		<-time.After(while)
		require.NoError(t, finish())
		require.NoError(t, rig.Within(t, ended, "nobody waits for the aggregate any more"))
		assert.GreaterOrEqual(t, deadline.Sub(called), once.Timeout+while)
		assert.Equal(t, upTo(2), b.applied("a"))
		assert.Zero(t, b.events.Count("failed"))
	})
}

// A server may end the wait before TwinWait, as with statement_timeout: that is no attempt either.
func TestAServerThatEndsTheWaitForAnAggregate(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		store := b.process()
		h := b.gated(store, millrace.VersionGate{}, handler)
		must(t, h, change("b", 1)) // from now on PostgreSQL may advance an aggregate with the claim
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("a", 1))
		finish := b.slowly(millrace.VersionGate{}, handler, change("a", 2))
		queue := rig.Queue(b, store, inbox.QueueConfig{Consumer: consumer, MinBackoff: time.Millisecond, MaxAttempts: 1})
		require.NoError(t, queue.Put(t.Context(), "changes", change("a", 3)))
		leased := rig.Take(b, queue, 1)[0]
		msg, err := leased.Message(t.Context())
		require.NoError(t, err)
		for _, msg := range []*message.Message{change("a", 3), msg} {
			ended := rig.Handle(h, msg)
			b.db.CutWait(t, "millrace_versions")
			err := <-ended
			require.ErrorIs(t, err, inbox.ErrInProgress)
			require.ErrorContains(t, err, `aggregate "a"`)
		}
		require.NoError(t, leased.Fail(t.Context()))
		assert.Equal(t, inbox.ReasonNotTried, b.events.Last("retried").Reason)
		assert.Zero(t, b.events.Count("failed"))
		require.NoError(t, finish())
	})
}

// isTold delivers msg until an error names the aggregate: with a short TwinWait, the claim may be too slow.
func (b *bed) isTold(h message.HandlerFunc, msg *message.Message) {
	b.Helper()
	rig.Eventually(b, "another process works on the aggregate", func() bool {
		err := rig.Failure(b, h, msg, inbox.ErrInProgress)
		return strings.Contains(err.Error(), `aggregate "a"`)
	})
}

// slowly has another process handle msg with h, until finish is called, which returns its error.
func (b *bed) slowly(gate millrace.VersionGate, h message.HandlerFunc, msg *message.Message) (finish func() error) {
	b.Helper()
	halted, entered, goOn := rig.Halted(h)
	b.Cleanup(goOn)
	ended := rig.Handle(b.gated(b.process(), gate, halted), msg)
	<-entered
	return func() error { goOn(); return <-ended }
}

// A server that is slow is nobody else's work on the aggregate, however short TwinWait is.
func TestASlowServerIsNoOtherProcess(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		pool := faults.Open(t, b.db)
		store := b.newStore(pool.DB, inbox.Config{})
		b.queued(store)
		slow := millrace.Inbox{Store: store, Consumer: consumer, Options: inbox.Options{TwinWait: 300 * time.Millisecond}}
		h := slow.Middleware(millrace.VersionGate{}.Middleware(handler))
		handled := func(msg *message.Message) {
			rig.Eventually(t, "it is handled, or held, although its claim may take longer than TwinWait now and then", func() bool {
				_, err := h(again(msg))
				return err == nil || !assert.ErrorIs(t, err, inbox.ErrInProgress)
			})
		}
		handled(change("warm", 1))
		pool.Set(faults.Plan{Before: func(context.Context, string) error {
			<-time.After(120 * time.Millisecond)
			return nil
		}})
		handled(change("a", 1))
		handled(change("b", 2))
		assert.Equal(t, 1, b.open(admin.Held))
	}))
}

// A predecessor that another process is at is no gap.
func TestAPredecessorUnderWayIsNoGap(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{OnGap: inbox.GapLatest}
		must(t, b.gated(b.store, gate, handler), change("a", 1))
		finish := b.slowly(gate, handler, change("a", 2))
		second := rig.Handle(b.gated(b.process(), gate, handler), change("a", 3))
		b.db.UntilWaiting(t, 1, "millrace_versions")
		require.NoError(t, finish())
		require.NoError(t, <-second)
		assert.Equal(t, upTo(3), b.applied("a"))
		assert.Zero(t, b.events.Count("gap"))
	})
}

// A message is held in one process at the instant at which its predecessor is applied in
// another: it is seen by one of the two.
func TestWakeUpRace(t *testing.T) {
	testdb.Turn(t, 1, seconds)
	t.Parallel()
	testdb.Each(t, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		n := testdb.Rounds(250, 10_000)
		todo := make(chan int, n)
		for i := range n {
			todo <- i
		}
		close(todo)
		var hands sync.WaitGroup
		for range 4 {
			var handlers [2]message.HandlerFunc // with one message in flight each, so none waits in memory
			for i := range handlers {
				store := b.process()
				b.queued(store)
				handlers[i] = b.gated(store, millrace.VersionGate{}, handler)
			}
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
			if side == 0 { // it takes fewer statements, and would nearly always be first
				for range i % 5 {
					assert.NoError(b, b.db.PingContext(b.Context()))
				}
			}
			_, err := handlers[(side+i)%2](msg)
			assert.NoError(b, err)
		})
	}
	start.Done()
	both.Wait()
}

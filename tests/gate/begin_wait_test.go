package gate_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestWhereAnAggregateBegins: the gate records it in a transaction of its own, which must neither take a connection more nor go on for ever.
func TestWhereAnAggregateBegins(t *testing.T) {
	testdb.Conformance(t, beginBodies)
}

// beginning calls does whenever a transaction begins with a statement on aggregates, which is to record where they begin.
func beginning(does func(ctx context.Context) error) faults.Plan {
	var mu sync.Mutex
	last := make(map[any]string)
	return faults.Plan{Before: func(ctx context.Context, call string) error {
		mu.Lock()
		first := last[faults.Connection(ctx)] == faults.Begin
		last[faults.Connection(ctx)] = call
		mu.Unlock()
		if first && strings.Contains(call, "INTO millrace_versions") {
			return does(ctx)
		}
		return nil
	}}
}

var beginBodies = []testdb.Body{
	{Name: "others have the aggregate whenever its beginning is recorded", Why: "the message goes back to its source, and somebody is told",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			pool, tries := faults.Open(t, b.db), 0
			in := millrace.Inbox{Store: b.newStore(pool.DB, inbox.Config{}), Consumer: consumer, Timeout: time.Minute}
			h := in.Middleware(millrace.VersionGate{First: inbox.FirstSeen}.Middleware(handler))
			pool.Set(beginning(func(ctx context.Context) error {
				tries++
				if deadline, _ := ctx.Deadline(); b.db.Dialect == "sqlite" {
					assert.Greater(t, time.Until(deadline), 30*time.Second, "it does not wait for others, and has all the time")
				} else if tries == 1 { // TwinWait is over
					<-ctx.Done()
					return ctx.Err()
				} else if tries == 2 { // the server ends the wait before that
					return faults.Limit(b.db.Dialect)
				}
				return faults.Deadlock(b.db.Dialect)
			}))
			first := change("a", 4)
			rig.MustFail(t, h, again(first), inbox.ErrInProgress, `aggregate "a"`)
			assert.GreaterOrEqual(t, tries, 3)
			assert.InDelta(t, 3, b.events.Count("contention"), 2, "a real conflict may come on top")
			assert.Empty(t, b.applied("a"))
			pool.Set(faults.Plan{})
			must(t, h, again(first))
			assert.Equal(t, []int64{4}, b.applied("a"))
		})},
	{Name: "MaxInFlight while the beginning of an aggregate is recorded", Why: "that is a transaction too", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		pool, tried := faults.Open(t, b.db), false
		store := b.newStore(pool.DB, inbox.Config{MaxInFlight: 1})
		h := b.gated(store, millrace.VersionGate{First: inbox.FirstSeen, Optional: true}, func(*message.Message) ([]*message.Message, error) { return nil, nil })
		pool.Set(beginning(func(context.Context) error {
			tried = true
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // the transaction is open until the end of this
			defer cancel()
			another := message.NewMessage("another", nil)
			another.SetContext(ctx)
			_, err := h(another)
			assert.ErrorIs(t, err, context.DeadlineExceeded, "it waits for its turn")
			return nil
		}))
		must(t, h, change("a", 4))
		require.True(t, tried)
	})},
}

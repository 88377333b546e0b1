package gate_test

import (
	"context"
	"fmt"
	"strings"
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

func lostLease(t *testing.T, b *bed) {
	slow, quick := b.proc(consumer, millrace.VersionGate{}), b.proc(consumer, millrace.VersionGate{})
	taken, msg := slow.released("a")
	b.later()
	assert.Equal(t, 1, quick.work(), "it is taken over")
	_, err := slow.handler(msg)
	require.NoError(t, err, "it was applied meanwhile")
	require.ErrorIs(t, taken.Finish(t.Context()), inbox.ErrLost)
	assert.Equal(t, upTo(2), b.applied("a"))
	b.nothingLeft()

	// The lease is lost while the handler runs, and nobody has used it yet.
	taken, msg = slow.released("b")
	b.later()
	_, again := quick.take()
	_, err = slow.handler(msg)
	require.ErrorIs(t, err, inbox.ErrLost, "fenced by the token of the lease")
	assert.Equal(t, upTo(1), b.applied("b"))
	require.ErrorIs(t, taken.Fail(t.Context()), inbox.ErrLost)
	must(t, quick.handler, again)
	assert.Equal(t, upTo(2), b.applied("b"))
	b.nothingLeft()
}

func deadlocks(t *testing.T, b *bed) {
	p := b.proc(consumer, millrace.VersionGate{})
	require.True(t, p.deliver(change("first", 1)), "it is registered")
	for kind, last := range map[string]string{"held": faults.Commit, "applied": "INTO applied"} {
		hit := true
		for n := 1; hit; n++ {
			aggregate, statements, over := fmt.Sprint(kind, n), 0, false
			hit = false
			p.pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				over = over || strings.Contains(call, last)
				if over || hit || call == faults.Begin || call == faults.Rollback {
					return nil
				}
				if statements++; statements == n {
					hit = true
					return faults.Deadlock(b.db.Dialect)
				}
				return nil
			}})
			version := int64(1)
			if kind == "held" {
				version = 2
			}
			require.True(t, p.deliver(change(aggregate, version)), "%s, statement %d", kind, n)
			if hit {
				require.Len(t, b.applied(aggregate), 2-int(version))
			} else {
				require.Greater(t, n, 2, "statements of a message that is %s", kind)
			}
		}
	}
	assert.Equal(t, b.count(`SELECT COUNT(*) FROM millrace_messages`), b.open(admin.Held))
}

func deadlockAtRelease(t *testing.T, b *bed) {
	p := b.proc(consumer, millrace.VersionGate{})
	require.True(t, p.deliver(change("a", 2)))
	hits := 0
	p.pool.Set(faults.Plan{Before: faults.At("UPDATE millrace_messages", func() error {
		if hits == 2 {
			return nil
		}
		hits++
		return faults.Deadlock(b.db.Dialect)
	})})
	require.True(t, p.deliver(change("a", 1)))
	assert.Equal(t, 2, hits)
	assert.Equal(t, upTo(1), b.applied("a"))
	assert.Equal(t, 1, b.open(admin.Received), "its successor is released")
}

func deadlockAfterACommit(t *testing.T, b *bed) {
	p := b.proc(consumer, millrace.VersionGate{})
	one, ran := change("a", 1), 0
	h := b.gated(p.store, millrace.VersionGate{}, b.commitsFirst(&ran, nil))
	must(t, h, change("a", 2))
	p.pool.Set(faults.Plan{Before: faults.At("UPDATE millrace_messages", func() error { return faults.Deadlock(b.db.Dialect) })})
	rig.MustFail(t, h, again(one)) // its successor was not released
	p.pool.Set(faults.Plan{})
	must(t, h, again(one))
	assert.Equal(t, 2, ran, "the redelivery runs the handler")
	assert.Equal(t, 1, b.open(admin.Received), "the successor is released")
}

func jumpsBack(t *testing.T, b *bed) {
	ten, ran := snapshot("a", 10), 0
	fails := b.commitsFirst(&ran, errFails)
	h := b.gated(b.store, millrace.VersionGate{Starts: starts}, func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == ten.UUID {
			return fails(msg)
		}
		return handler(msg)
	})
	must(t, h, change("a", 1), change("a", 2), change("a", 3))
	rig.MustFail(t, h, again(ten), inbox.ErrTxEndedByHandler)
	version, err := b.store.Version(t.Context(), inbox.Aggregate{Consumer: consumer, ID: "a"})
	require.NoError(t, err)
	assert.EqualValues(t, 3, version)
	must(t, h, change("a", 4), again(ten), change("a", 5), change("a", 11))
	assert.Equal(t, []int64{1, 2, 3, 4, 10, 11}, b.applied("a"))
	b.nothingLeft()
}

func endedInPause(t *testing.T, b *bed) {
	p := b.proc(consumer, millrace.VersionGate{})
	require.True(t, p.deliver(change("a", 1)))
	ctx, cancel := context.WithCancel(t.Context())
	p.pool.Set(faults.Plan{Before: faults.At("millrace_versions", func() error {
		cancel()
		return faults.Deadlock(b.db.Dialect)
	})})
	msg := change("a", 2)
	ended := again(msg)
	ended.SetContext(ctx)
	_, err := p.handler(ended)
	require.Error(t, err)
	p.pool.Set(faults.Plan{})

	next := again(msg)
	ctx, cancel = context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	next.SetContext(ctx)
	must(t, p.handler, next)
	assert.Equal(t, upTo(2), b.applied("a"))
}

func closedIsNoAttempt(t *testing.T, b *bed) {
	p := b.proc(consumer, millrace.VersionGate{})
	taken, msg := p.released("a")
	require.NoError(t, p.store.Close(t.Context()))
	rig.MustFail(t, p.handler, msg, inbox.ErrClosed)
	require.NoError(t, taken.Fail(t.Context()))
	assert.Zero(t, b.count(`SELECT attempts FROM millrace_messages`))
}

// blocking is a subscriber with one message in flight.
type blocking struct{ *list }

func (blocking) String() string { return "sql.Subscriber" }

// A source that is known to deliver nothing else is not stopped for as long as a gap may last.
func TestASourceIsNotStoppedByAGap(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		router := b.newRouter(b.store, millrace.VersionGate{OnGap: inbox.GapFail, GapFor: time.Hour})
		sub := blocking{&list{messages: []*message.Message{change("a", 2), change("a", 1)}, width: 1}}
		router.AddConsumerHandler(consumer, "changes", sub, apply)
		rig.Run(b, router)
		rig.Eventually(b, "the one behind it is applied", func() bool { return len(b.applied("a")) == 1 })
		assert.Equal(t, 1, b.open(admin.Parked))
	}))
}

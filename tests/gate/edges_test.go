package gate_test

import (
	"errors"
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

func TestEdges(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, edgeBodies)
}

// edgeBodies: what happens where two things happen at once, or one only by half.
var edgeBodies = []testdb.Body{
	{Name: "version 0 after a later one", Why: "an aggregate that begins at 0 does so whenever 0 arrives",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			p := b.proc(consumer, millrace.VersionGate{First: inbox.FirstIsZero})
			require.True(t, p.deliver(change("a", 2)))
			require.True(t, p.deliver(change("a", 0)))
			require.True(t, p.deliver(change("a", 1)))
			assert.Equal(t, 1, p.work())
			assert.Equal(t, []int64{0, 1, 2}, b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "two processes share the aggregates of two consumers", Why: "each consumer applies everything once, with two connections",
		Run: testdb.With(newTunedBed, twoConsumers)},
	{Name: "transfers in both directions", Why: "aggregates are locked in one order, whatever order a message names them in",
		Run: testdb.With(newTunedBed, transfers)},
	{Name: "the commit of a hold is in doubt", Why: "the redelivery finds what was held",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			second := change("a", 2)
			first := b.proc(consumer, millrace.VersionGate{})
			require.True(t, first.deliver(change("b", 1)), "it is registered")
			first.loseCommits()
			require.False(t, first.deliver(second))
			assert.Equal(t, 1, b.open(admin.Held), "it was applied")
			next := b.proc(consumer, millrace.VersionGate{})
			require.True(t, next.deliver(second))
			assert.Equal(t, 1, b.open(admin.Held))
			require.True(t, next.deliver(change("a", 1)))
			assert.Equal(t, 1, next.work())
			assert.Equal(t, upTo(2), b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "the commit of an advance is in doubt", Why: "the redelivery is a duplicate, and what waits was released",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			p := b.proc(consumer, millrace.VersionGate{})
			one := change("a", 1)
			require.True(t, p.deliver(change("a", 2)))
			p.loseCommits()
			require.False(t, p.deliver(one))
			p.pool.Set(faults.Plan{})
			require.True(t, p.deliver(one))
			assert.Equal(t, 1, b.events.Count("duplicate"))
			assert.Equal(t, 1, p.work())
			assert.Equal(t, upTo(2), b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "the commit of a stored message is in doubt", Why: "its row is closed, or held, all the same",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			p := b.proc(consumer, millrace.VersionGate{})
			taken, msg := p.released("a")
			p.loseCommits()
			rig.MustFail(t, p.handler, msg)
			p.pool.Set(faults.Plan{})
			require.ErrorIs(t, taken.Fail(t.Context()), inbox.ErrLost, "it is no longer there")
			assert.Equal(t, upTo(2), b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "a handler that commits and fails", Why: "its version does not swallow the redelivery",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.queued(b.store)
			one, ran := change("a", 1), 0
			h := b.gated(b.store, millrace.VersionGate{}, b.commitsFirst(&ran, errFails))
			must(t, h, change("a", 2))
			rig.MustFail(t, h, again(one), inbox.ErrTxEndedByHandler)
			must(t, h, again(one))
			assert.Equal(t, 2, ran, "the redelivery runs the handler")
			assert.Equal(t, upTo(1), b.applied("a"))
			assert.Equal(t, 1, b.open(admin.Received), "the successor is released")
			must(t, h, again(one))
			assert.Equal(t, 2, ran)
		})},
	{Name: "a later version whose handler commits and fails", Why: "the aggregate goes back by that version alone",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			b.queued(b.store)
			three, ran := change("a", 3), 0
			fails := b.commitsFirst(&ran, errFails)
			h := b.gated(b.store, millrace.VersionGate{}, func(msg *message.Message) ([]*message.Message, error) {
				if msg.UUID == three.UUID {
					return fails(msg)
				}
				return handler(msg)
			})
			must(t, h, change("a", 1), change("a", 2))
			rig.MustFail(t, h, again(three), inbox.ErrTxEndedByHandler)
			assert.EqualValues(t, 2, b.version("a"))
			must(t, h, again(three), change("a", 4))
			assert.Equal(t, upTo(4), b.applied("a"))
			b.nothingLeft()
		})},
	{Name: "a jump whose handler commits and fails", Why: "the aggregate goes back to where it came from", Run: testdb.With(newTunedBed, jumpsBack)},
	{Name: "a successor after a handler that committed and failed", Why: "it waits for the redelivery",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			one, ran := change("a", 1), 0
			p := b.proc(consumer, millrace.VersionGate{})
			h := b.gated(p.store, millrace.VersionGate{}, b.commitsFirst(&ran, errFails))
			rig.MustFail(t, h, again(one), inbox.ErrTxEndedByHandler)
			must(t, h, change("a", 2), again(one))
			b.later()
			p.work()
			assert.Equal(t, upTo(2), b.applied("a"))
		})},
	{Name: "a lease that was lost", Why: "who took the message over applies it, once", Run: testdb.With(newTunedBed, lostLease)},
	{Name: "a restart with messages held", Why: "nobody publishes any more, and all are delivered",
		Run: testdb.With(newTunedBed, func(t *testing.T, b *bed) {
			first := b.proc(consumer, millrace.VersionGate{})
			for _, v := range []int64{5, 3, 4, 2, 1} {
				require.True(t, first.deliver(change("a", v)))
			}
			assert.Equal(t, 3, b.open(admin.Held))
			first.die()
			b.service(b.process(), millrace.VersionGate{}, handler)
			b.eventually("a", 5)
		})},
	{Name: "a deadlock before the handler", Why: "it is tried again, and nobody outside sees it", Run: testdb.With(newTunedBed, deadlocks)},
	{Name: "deadlocks after a handler that committed", Why: "it is not made again, and its successor is not forgotten", Run: testdb.With(newTunedBed, deadlockAfterACommit)},
	{Name: "a deadlock after the handler", Why: "the run is undone and made again, and nobody outside sees it", Run: testdb.With(newTunedBed, deadlockAtRelease)},
	{Name: "a delivery that ends while it waits its turn",
		Why: "its aggregate is free for the next one", Run: testdb.With(newTunedBed, endedInPause)},
	{Name: "a service that closes", Why: "a delivery that did not run is no attempt", Run: testdb.With(newTunedBed, closedIsNoAttempt)},
}

// released has version 1 of an aggregate release version 2, and leases that.
func (p *proc) released(aggregate string) (*inbox.Leased, *message.Message) {
	p.Helper()
	require.True(p, p.deliver(change(aggregate, 2)))
	require.True(p, p.deliver(change(aggregate, 1)))
	return p.take()
}

// take leases the one message that is due.
func (p *proc) take() (*inbox.Leased, *message.Message) {
	p.Helper()
	taken := rig.Take(p, p.queue, 1)
	require.Len(p, taken, 1)
	msg, err := taken[0].Message(p.Context())
	require.NoError(p, err)
	return taken[0], msg
}

// commitsFirst commits by itself in the first run and returns err, where the database lets it. Later runs apply.
func (b *bed) commitsFirst(ran *int, err error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if *ran++; *ran > 1 {
			return nil, apply(msg)
		}
		tx, txErr := inbox.Tx(msg.Context())
		require.NoError(b, txErr)
		commitErr := tx.Commit()
		require.Equal(b, b.db.Dialect == "sqlite", commitErr != nil, "only the inbox commits there")
		return nil, errors.Join(err, commitErr)
	}
}

// loseCommits has every commit applied, and reported as failed.
func (p *proc) loseCommits() { p.pool.Set(faults.Plan{After: faults.Lose(faults.Commit)}) }

func twoConsumers(t *testing.T, b *bed) {
	const versions = 8
	var stores [2]*inbox.Store
	for i := range stores {
		stores[i] = b.process(testdb.Pool(2))
		for _, name := range []string{"one", "two"} {
			_, err := stores[i].Queue(inbox.QueueConfig{Consumer: name, MinBackoff: 10 * time.Millisecond})
			require.NoError(t, err)
		}
	}
	var messages []*message.Message
	for v := range int64(versions) {
		messages = append(messages, change("a", v+1), change("b", v+1))
	}
	for _, store := range stores {
		for _, name := range []string{"one", "two"} {
			sub := &list{messages: shuffled(messages), width: 4}
			b.route(store, name, sub, millrace.VersionGate{}, named(name))
		}
	}
	for _, name := range []string{"one", "two"} {
		for _, aggregate := range []string{"a", "b"} {
			b.eventually(name+" "+aggregate, versions)
		}
	}
}

// named is handler for one of several consumers.
func named(consumer string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		own := again(msg)
		own.SetContext(msg.Context())
		own.Metadata.Set(inbox.AggregateField, consumer+" "+msg.Metadata.Get(inbox.AggregateField))
		return nil, apply(own)
	}
}

func transfers(t *testing.T, b *bed) {
	const versions = 20
	both := func(msg *message.Message) ([]inbox.Version, error) {
		one, err := inbox.VersionFromMetadata()(msg)
		if err != nil {
			return nil, err
		}
		other := inbox.Version{Aggregate: "b", Number: one[0].Number}
		if one[0].Number%2 == 0 {
			return []inbox.Version{other, one[0]}, nil
		}
		return []inbox.Version{one[0], other}, nil
	}
	var messages []*message.Message
	for v := range int64(versions) {
		messages = append(messages, change("a", v+1))
	}
	var problems errorList
	for range 2 {
		sub := &list{messages: shuffled(messages), width: 4}
		b.route(b.process(), consumer, sub, millrace.VersionGate{Version: both}, handler, problems.middleware)
	}
	b.eventually("a", versions)
	assert.Empty(t, problems.all(), "no deadlock is seen outside")
	assert.Equal(t, int64(versions), b.version("b"))
}

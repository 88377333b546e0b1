package gate_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A process dies at each call to the database from the one that would hold a message to
// the one that finds it applied, after its predecessor: before the server gets the call, or
// before its answer arrives. Another process goes on, and applies everything in order.
func TestKilledAtEveryStatement(t *testing.T) {
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		other := b.proc(consumer, millrace.VersionGate{})
		for _, asked := range []bool{false, true} {
			calls := 0
			for died := true; died; {
				calls++
				died = b.killAt(calls, asked, other)
			}
			t.Logf("%d calls, the server asked for the last: %v", calls-1, asked)
			require.Greater(t, calls, 25, "calls between the first message and the last")
		}
		b.nothingLeft()
	}))
}

// killAt plays one aggregate and reports whether the process lived long enough to die.
func (b *bed) killAt(call int, asked bool, other *proc) (died bool) {
	b.Helper()
	const versions = 2
	aggregate := fmt.Sprint(call, asked)
	victim := b.proc(consumer, millrace.VersionGate{})
	defer func() { _ = victim.pool.Close() }()
	defer victim.die()
	p := victim
	p.dieAt(call, asked)
	broker := []*message.Message{change(aggregate, 2), change(aggregate, 1)}
	for round := 0; len(b.applied(aggregate)) < versions || len(broker) > 0; round++ {
		require.Less(b, round, 20, "stuck after a death at call %d: %v applied, %d with the broker",
			call, b.applied(aggregate), len(broker))
		var left []*message.Message
		for _, msg := range broker {
			if p.dead() || !p.deliver(msg) {
				left = append(left, msg)
			}
		}
		broker = left
		p.work()
		if p.dead() {
			p, died = other, true
			b.later()
		}
		done := b.applied(aggregate)
		require.Equal(b, upTo(int64(len(done))), done, "after a death at call %d", call)
		require.Zero(b, b.stuck(), "after a death at call %d", call)
	}
	b.drain(p)
	require.Equal(b, upTo(versions), b.applied(aggregate), "after a death at call %d", call)
	return died
}

// drain works off what a death left behind although it was applied.
func (b *bed) drain(p *proc) {
	b.Helper()
	for round := 0; b.count(`SELECT COUNT(*) FROM millrace_messages`) > 0; round++ {
		require.Less(b, round, 5, "something is left")
		b.later()
		p.work()
	}
}

package gate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Two processes with 16 messages in flight each deliver every version of many aggregates,
// in random orders.
func TestTwoProcesses(t *testing.T) {
	testdb.Turn(t, 1, seconds)
	t.Parallel()
	testdb.Each(t, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		s := share{Driver: b.db.Driver, DSN: b.db.DSN, Aggregates: testdb.Rounds(40, 100), Versions: 5, Width: 16}
		processes := []*process.Process{s.launch(t), s.launch(t)}
		for _, p := range processes {
			p.GoOn()
		}
		counts := b.finished(s, processes)
		assert.Equal(t, s.messages(), counts["completed"])
		t.Logf("%d messages from both sides: %v", s.messages(), counts)
	}))
}

// Two processes do the same, with a handler that fails at times, and are killed one after
// the other. Those that follow get
// every message again, since nobody knows which of them the broker was told of.
func TestProcessesAreKilled(t *testing.T) {
	testdb.Turn(t, 1, seconds)
	t.Parallel()
	testdb.Each(t, testdb.With(newTunedBed, func(t *testing.T, b *bed) {
		s := share{Driver: b.db.Driver, DSN: b.db.DSN, Aggregates: testdb.Rounds(25, 50), Versions: 5, Width: 16, Lease: time.Second, FailOneIn: 10}
		processes := []*process.Process{s.launch(t), s.launch(t)}
		for _, p := range processes {
			p.GoOn()
		}
		for kill := range 3 {
			rig.Eventually(b, "some are applied", func() bool {
				return b.count(`SELECT COUNT(*) FROM applied`) >= (kill+1)*s.messages()/5
			})
			processes[0].Kill()
			processes = append(processes[1:], s.launch(t))
			processes[1].GoOn()
		}
		counts := b.finished(s, processes)
		t.Logf("%d messages: %v", s.messages(), counts)
	}))
}

func (s share) messages() int { return s.Aggregates * int(s.Versions) }

func (s share) launch(t *testing.T) *process.Process {
	t.Helper()
	return process.Self(t, shareName, s)
}

// finished waits until all is applied and acked, and closes the processes.
func (b *bed) finished(s share, processes []*process.Process) (counts map[string]int) {
	b.Helper()
	rig.Eventually(b, "everything is applied", func() bool {
		return b.count(`SELECT COUNT(*) FROM applied`) >= s.messages() &&
			b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0
	})
	counts = map[string]int{}
	for _, p := range processes {
		p.Await(drained, 1)
		for kind, n := range p.Close() {
			counts[kind] += n
		}
		for _, e := range p.Events(process.Failed) {
			if s.FailOneIn > 0 && strings.Contains(e.Error, errFails.Error()) ||
				s.Lease > 0 && strings.Contains(e.Error, inbox.ErrLost.Error()) { // it is short, for a busy machine
				continue
			}
			assert.Fail(b, "an error reached the router", "%s: %s", e.UUID, e.Error)
		}
	}
	for a := range s.Aggregates {
		require.Equal(b, upTo(s.Versions), b.applied(fmt.Sprint(a)))
	}
	assert.Equal(b, s.Aggregates, b.count(`SELECT COUNT(*) FROM millrace_versions WHERE version = ?`, s.Versions))
	b.nothingLeft()
	return counts
}

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

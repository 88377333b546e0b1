package tests_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// settings are those of a service on the database of b.
func (b *bed) settings(opts ...testdb.Option) process.Settings {
	b.Helper()
	db := b.db.Open(b, opts...)
	return process.Settings{Driver: db.Driver, DSN: db.DSN, Pool: 5, Marks: b.TempDir(), TwinWait: rig.Patience}
}

// start starts n services at once.
func (b *bed) start(n int, s process.Settings) []*process.Process {
	b.Helper()
	services := make([]*process.Process, n)
	var wg sync.WaitGroup
	for i := range services {
		wg.Go(func() { services[i] = process.Start(b, s) })
	}
	wg.Wait()
	for _, p := range services {
		require.NotNil(b, p)
	}
	return services
}

func letter() process.Message {
	return process.Message{
		UUID: watermill.NewUUID(), Payload: []byte("\xffpayload"), Metadata: map[string]string{"name": "OrderPlaced"},
	}
}

// One message is delivered many times at once: 100 goroutines in one process, then 4
// processes of 16 goroutines. The first run stops with its effect written, fails once the
// others wait, and one of them leads. Meanwhile other messages go through the same services.
func TestCopiesAtOnceInProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ processes, goroutines int }{{1, 100}, {4, 16}} {
		t.Run(fmt.Sprintf("%d×%d", c.processes, c.goroutines), func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *testdb.DB) {
				copiesAtOnce(newBed(t, db), c.processes, c.goroutines)
			})
		})
	}
}

func copiesAtOnce(b *bed, processes, goroutines int) {
	const others = 25 // per process
	settings := b.settings()
	settings.TwinWait, settings.Timeout = rig.Patience, rig.Patience // the twins wait while other messages flow
	services := b.start(processes, settings)
	same := letter()
	for _, p := range services {
		p.Deliver(process.Delivery{Message: same, Copies: goroutines, FailFirst: true})
	}
	leader := b.whoStops(services)
	if b.db.Dialect != "sqlite" { // there the leader's transaction excludes every writer
		b.db.UntilWaiting(b, processes-1, "INTO millrace_claims")
		b.flow(services, others, 0)
	}
	leader.GoOn()
	answers := processes * goroutines
	if b.db.Dialect == "sqlite" {
		b.flow(services, others, goroutines)
	}
	counts := map[string]int{}
	acked, nacked := 0, 0
	for _, p := range services {
		b.answered(p, same.UUID, goroutines)
		for _, e := range p.Events(process.Failed) {
			assert.Contains(b, e.Error, "the first run fails", "an error that no handler returned")
		}
		acked += of(p.Events(process.Acked), same.UUID)
		nacked += of(p.Events(process.Nacked), same.UUID)
		for kind, n := range p.Close() {
			counts[kind] += n
		}
	}
	b.Logf("%d copies: %d acked, %d nacked; %v", answers, acked, nacked, counts)
	assert.Equal(b, 1, b.effectsOf(same.UUID))
	assert.Equal(b, answers-1, acked)
	assert.Equal(b, 1, nacked)
	assert.Equal(b, 1, counts["failed"])
	assert.Equal(b, 1+others*processes, counts["completed"])
	assert.Equal(b, answers-2, counts["duplicate"])
	assert.Equal(b, 1+others*processes, b.effects())
	assert.Equal(b, 1+others*processes, b.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 1`))
}

// whoStops returns the first service that stops at a point.
func (b *bed) whoStops(services []*process.Process) *process.Process {
	b.Helper()
	var found *process.Process
	rig.Eventually(b, "a service stops", func() bool {
		for _, p := range services {
			if len(p.Events(process.At)) > 0 {
				found = p
			}
		}
		return found != nil
	})
	return found
}

// flow delivers n other messages to each service, and returns when all are acked.
func (b *bed) flow(services []*process.Process, n, failing int) {
	b.Helper()
	for _, p := range services {
		for range n {
			p.Deliver(process.Delivery{Message: letter()})
		}
	}
	for _, p := range services {
		rig.Eventually(b, "other messages flow", func() bool {
			return len(p.Events(process.Acked))+len(p.Events(process.Nacked)) >= n+failing
		})
	}
}

func (b *bed) answered(p *process.Process, uuid string, n int) {
	b.Helper()
	rig.Eventually(b, fmt.Sprintf("%d copies are answered", n), func() bool {
		return of(p.Events(process.Acked), uuid)+of(p.Events(process.Nacked), uuid) == n
	})
}

func of(events []process.Event, uuid string) (n int) {
	for _, e := range events {
		if e.UUID == uuid {
			n++
		}
	}
	return n
}

// A service freezes inside its handler, with its transaction open and its effect written.
// With the documented settings of the connection the server takes the claim from it, and
// the other service handles the message; thawed, the frozen one cannot commit.
//
// SQLite has no server that could take a lock from a frozen process; see the next test.
func TestFrozenHostLosesItsClaim(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, dialect))
			limit := 10 * time.Second // no service is held up for as long
			settings := b.settings(testdb.FrozenHosts(limit, 30*time.Second))
			frozen, msg := b.freeze(settings)
			twin := process.Start(t, settings)
			asked := time.Now()
			twin.Deliver(process.Delivery{Message: msg})
			twin.Await(process.Acked, 1)
			t.Logf("the twin handled the message %v after it asked, the limit is %v",
				time.Since(asked).Round(10*time.Millisecond), limit)
			assert.Equal(t, 1, twin.Close()["completed"])
			assert.Equal(t, 1, b.effects())

			frozen.Thaw()
			frozen.GoOn() // its handler returns a success
			frozen.Await(process.Nacked, 1)
			failed := frozen.Await(process.Failed, 1)
			t.Logf("the frozen service: %s", failed[0].Error)
			assert.Equal(t, 1, b.effects(), "the frozen service committed")

			frozen.Deliver(process.Delivery{Message: msg})
			frozen.Await(process.Acked, 1)
			counts := frozen.Close()
			assert.Equal(t, 0, counts["completed"])
			assert.Equal(t, 1, counts["duplicate"])
			assert.Equal(t, 1, b.effects())
			b.nothingOpen()
		})
	}
}

// Without the settings the claim stays with the frozen service: copies give up, and come
// again, until it thaws and commits. On SQLite nothing else is possible: the file is locked
// by a process, and only its end frees it.
func TestFrozenHostKeepsItsClaimWithoutSettings(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db.DSN = strings.Replace(db.DSN, "busy_timeout(10000)", "busy_timeout(200)", 1)
		b := newBed(t, db)
		impatient := b.settings()
		impatient.TwinWait = 500 * time.Millisecond
		twin := process.Start(t, impatient)
		patient := b.settings()
		patient.Timeout = rig.Patience // the clock goes on for a frozen process
		frozen, msg := b.freeze(patient)
		for n := range 2 {
			twin.Deliver(process.Delivery{Message: msg})
			twin.Await(process.Nacked, n+1)
			failed := twin.Await(process.Failed, n+1)
			assert.Contains(t, failed[n].Error, inbox.ErrInProgress.Error())
		}
		frozen.Thaw()
		frozen.GoOn()
		frozen.Await(process.Acked, 1)
		for n := 3; of(twin.Events(process.Acked), msg.UUID) == 0; n++ { // on a busy machine it gives up again
			require.Less(t, n, 100)
			twin.Deliver(process.Delivery{Message: msg})
			b.answered(twin, msg.UUID, n)
		}
		assert.Equal(t, 1, frozen.Close()["completed"])
		assert.Equal(t, 1, twin.Close()["duplicate"])
		assert.Equal(t, 1, b.effects())
	})
}

// freeze starts a service that freezes inside the handler of msg.
func (b *bed) freeze(s process.Settings) (*process.Process, process.Message) {
	b.Helper()
	p, msg := process.Start(b, s), letter()
	p.Deliver(process.Delivery{Message: msg, Stop: process.InHandler})
	require.Equal(b, process.InHandler, p.Await(process.At, 1)[0].Point)
	p.Freeze()
	return p, msg
}

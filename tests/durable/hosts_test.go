package durable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// With these settings the server takes the locks from a client that froze in a transaction,
// be it one that renews its leases.
var limited = []testdb.Option{testdb.FrozenHosts(5*time.Second, 30*time.Second)}

// A process freezes for longer than its lease, and another one takes the message over.
// Thawed, the first one goes on, and its answer is refused.
func TestFrozenBeyondTheLease(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		for name, f := range map[string]freeze{
			"before its transaction":                    {at: process.BeforeClaim, opts: limited},
			"in its transaction, which the server ends": {at: process.InHandler, opts: limited},
			"in its transaction, which it keeps":        {at: process.InHandler, keeps: true},
		} {
			if db.Dialect == "sqlite" && f.at == process.InHandler {
				continue // its transaction stops every writer, so nobody can take over
			}
			for mode := range modes {
				t.Run(name+", stored "+modes[mode], func(t *testing.T) {
					t.Parallel()
					f.run(t, testdb.On(t, db.Dialect), mode)
				})
			}
		}
	})
}

type freeze struct {
	at    process.Point
	opts  []testdb.Option
	keeps bool // its transaction, so the other one waits for it
}

func (f freeze) run(t *testing.T, db *testdb.DB, mode pubsub.Mode) {
	b, s := newServed(t, db, f.opts...)
	s.Mode, s.TwinWait, s.Lease = mode, 20*time.Second, lapsing()
	s.Timeout = rig.Patience // the clock goes on for a frozen process
	c := newCrash(b, s)
	victim := c.letter(false)
	victim.Metadata[redelivered] = "true" // so that it is stored in both modes
	slow := c.launch(t)
	slow.Deliver(process.Delivery{Message: victim, Stop: f.at})
	slow.Await(process.At, 1)
	rig.Eventually(c.T, "its source has the ack", func() bool { return len(slow.Events(process.Acked)) == 1 })
	c.freeze(slow)
	c.lapse()

	other := c.launch(t)
	handled := func() bool { return c.works(victim.UUID) == 1 && c.rows() == 0 }
	if f.keeps {
		rig.Eventually(c.T, "another process took it over", func() bool {
			return c.count(`SELECT COUNT(*) FROM millrace_messages WHERE attempts = 1`) == 1
		})
	} else {
		rig.Eventually(c.T, "another process is done with it", handled)
	}
	slow.Thaw()
	slow.GoOn()
	answer := slow.Await(returned, 1)[0]
	switch {
	case f.keeps:
		assert.Contains(t, answer.Error, inbox.ErrLost.Error())
	case f.at == process.InHandler:
		assert.NotEmpty(t, answer.Error)
	}
	rig.Eventually(c.T, "the other one is done with it", handled)
	assert.Positive(t, other.Await(ran, 1)[0].Counts["attempts"], "it was counted before it ran again")
	for _, p := range []*process.Process{slow, other} {
		p.Close()
		c.collect(p)
	}
	c.check()
}

// freeze stops a process at a moment when nothing of its background, such as a heartbeat, is
// halfway through a transaction, which would keep the row from others for as long.
func (c *crash) freeze(p *process.Process) {
	c.Helper()
	rig.Eventually(c.T, "no row is locked", func() bool {
		p.Freeze()
		if c.unlocked() {
			return true
		}
		p.Thaw()
		return false
	})
}

// unlocked reports whether others could lease every message.
func (c *crash) unlocked() bool {
	c.Helper()
	if c.db.Dialect == "sqlite" {
		_, err := c.db.ExecContext(c.Context(), `UPDATE millrace_messages SET attempts = attempts`)
		return err == nil
	}
	for _, table := range []string{"millrace_messages", "millrace_consumers"} {
		var ids []int64
		require.NoError(c, c.db.SelectContext(c.Context(), &ids, `SELECT id FROM `+table+` FOR UPDATE SKIP LOCKED`))
		if len(ids) < c.count(`SELECT COUNT(*) FROM `+table) {
			return false
		}
	}
	return true
}

// Without the inbox the slow one has its effect, too, but its answer is refused: it neither
// closes nor gives back what the other one has.
func TestFrozenBeyondTheLeaseWithoutInbox(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b, s := newServed(t, db, limited...)
		s.Mode, s.Bare, s.Lease = pubsub.StoreFirst, true, lapsing()
		c := newCrash(b, s)
		victim := c.letter(false)
		slow := c.launch(t)
		slow.Deliver(process.Delivery{Message: victim, Stop: process.InHandler})
		slow.Await(process.At, 1)
		c.freeze(slow)
		c.lapse()

		other := c.launch(t)
		other.Deliver(process.Delivery{Message: victim, Stop: process.InHandler}) // a copy, so that it stops there, too
		other.Await(process.At, 1)
		slow.Thaw()
		slow.GoOn()
		slow.Close() // waits for the answer
		assert.Equal(t, 1, c.rows(), "the slow one closed what the other one has")
		other.GoOn()
		rig.Eventually(c.T, "the other one is done", func() bool { return c.rows() == 0 })
		other.Close()
		assert.Equal(t, 2, c.works(victim.UUID))
	})
}

// The database is killed and started again, or all its connections are cut, while two
// processes work. Nothing is lost or doubled, and the order holds where it was asked for. A
// single attempt that was charged would park its message.
func TestDatabaseRestartsUnderLoad(t *testing.T) {
	testdb.Turn(t, 3, seconds)
	t.Parallel()
	for _, c := range testdb.Sample(t, 1, []struct {
		dialect string
		launch  func(testing.TB, ...string) *servers.Server
		mode    pubsub.Mode
	}{
		{"postgres", servers.Postgres, pubsub.StoreFirst},
		{"postgres", servers.Postgres, pubsub.StoreOnFailure},
		{"mysql", servers.MariaDB, pubsub.StoreFirst},
		{"mysql", servers.MariaDB, pubsub.StoreOnFailure},
	}) {
		t.Run(c.dialect+", stored "+modes[c.mode], func(t *testing.T) {
			t.Parallel()
			server := c.launch(t)
			b := newBed(t, testdb.At(t, c.dialect, server.DSN()))
			b.createWorks()
			wire := servers.Proxy(t, server.Addr())
			s := b.served(testdb.Via(wire.Addr()))
			s.Mode, s.Ordered, s.MaxAttempts = c.mode, c.mode == pubsub.StoreFirst, 1
			s.Lease, s.Timeout = 20*time.Second, time.Minute // a busy machine, or a server that starts slowly, must not make it lapse
			b.interrupt(s, []func(){
				func() { server.Kill(); server.Start() },
				func() { wire.Cut(); wire.Mend() },
				func() { wire.Cut(); wire.Mend() },
			})
		})
	}
}

// interrupt has two processes work while the interruptions happen one after the other.
func (b *bed) interrupt(s served, interruptions []func()) {
	b.Helper()
	const processes, lanes, length = 2, 8, 40
	s.Lanes, s.Length = lanes, length
	var all []*process.Process
	for n := range processes {
		s.Name = fmt.Sprint("process ", n)
		all = append(all, s.launch(b.T))
	}
	for n, interrupt := range interruptions {
		for _, p := range all {
			p.Await(ran, (n+1)*lanes*length/(len(interruptions)+2))
		}
		// The second loss of a connection in a row is charged to its message.
		rig.Eventually(b, "what the last one hit is handled", func() bool {
			return b.count(`SELECT COUNT(*) FROM millrace_messages WHERE last_error IS NOT NULL`) == 0
		})
		interrupt()
		rig.Eventually(b, "it answers", func() bool { return b.db.PingContext(b.Context()) == nil })
	}
	for _, p := range all {
		p.Await(drained, 1)
	}
	rig.Eventually(b, "all is handled", func() bool { return b.rows() == 0 || b.open(admin.Parked) > 0 })
	again := 0
	for _, p := range all {
		p.Close()
		again += len(p.Events(ran)) - lanes*length
	}
	parked := rig.Parked(b, b.store)
	for _, m := range parked {
		assert.Fail(b, "an attempt was charged", "%s, %d attempts: %s: %s", m.UUID, m.Attempts, m.Reason, m.LastError)
	}
	if s.Ordered {
		b.checkLanes(processes*lanes, length, func(lane, n int) string {
			return fmt.Sprintf("process %d lane %d at %d", lane%processes, lane/processes, n)
		})
	}
	assert.Equal(b, processes*lanes*length, b.count(`SELECT COUNT(*) FROM works`))
	assert.Equal(b, processes*lanes*length, b.count(`SELECT COUNT(DISTINCT uuid) FROM works`))
	b.Logf("%d messages, %d runs were rolled back", processes*lanes*length, again)
}

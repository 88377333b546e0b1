package durable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// The database is killed and started again, or all its connections are cut, while two
// processes work. Nothing is lost or doubled, and the order holds where it was asked for. A
// single attempt that was charged would park its message.
func TestDatabaseRestartsUnderLoad(t *testing.T) {
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
			s.Lease = 5 * time.Second // a busy machine must not make it lapse
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

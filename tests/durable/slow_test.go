package durable_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// One handler takes several leases, and ends after the many quick ones that came later: none
// of them waits for it. Another process is ready to
// take over what lapses: nothing does, so nothing runs twice.
func TestSlowHandlerBesideQuickOnes(t *testing.T) {
	t.Parallel()
	quick, slow, lease := 300, 5*time.Second, 2*time.Second
	if testdb.Long() {
		quick, slow, lease = 1000, 30*time.Second, 3*time.Second
	}
	testdb.Some(t, 1, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, tuned(t, db))
		b.createWorks()
		s := b.served()
		s.Mode, s.Timeout, s.TwinWait = pubsub.StoreFirst, time.Minute+slow, time.Minute+slow
		s.Lease = lease
		took := slow
		if db.Dialect == "sqlite" { // its transaction stops every writer, renewals of leases too
			took = 2 * time.Second
			s.Timeout, s.TwinWait, s.Lease = time.Minute, time.Minute, 10*took
		}
		c := newCrash(b, s)
		processes := []*process.Process{c.launch(t), c.launch(t)}
		first := c.letter(false)
		first.Metadata[takes] = took.String()
		if db.Dialect != "sqlite" {
			first.Metadata[outlasts] = strconv.Itoa(quick)
		}
		processes[0].Deliver(process.Delivery{Message: first})
		rig.Eventually(c.T, "the slow handler runs", func() bool {
			return len(processes[0].Events(ran))+len(processes[1].Events(ran)) > 0
		})
		for n := range quick {
			m := c.letter(false)
			m.Metadata[takes] = "5ms"
			processes[n%2].Deliver(process.Delivery{Message: m})
		}
		rig.Eventually(c.T, "all are handled", func() bool { return c.count(`SELECT COUNT(*) FROM works`) > quick && c.rows() == 0 })
		runs := map[string]int{}
		for _, p := range processes {
			p.Close()
			for _, e := range p.Events(ran) {
				runs[e.UUID]++
				assert.Zero(t, e.Counts["attempts"], "a lease lapsed")
			}
			c.collect(p)
		}
		for _, m := range c.all {
			assert.Equal(t, 1, runs[m.UUID], "runs")
		}
		c.check()
		t.Logf("%d quick handlers beside one of %v", quick, took)
	})
}

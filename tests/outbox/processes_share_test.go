package outbox_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Relays in processes of their own join, leave and die under load. Each has its fair share
// of the shards, and no message is sent by two of them but what a relay that died had sent.
// One that lost its lease to a busy machine may send its own again.
func TestProcessesJoinLeaveAndDieUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		o.settings.Lease = 15 * time.Second
		if o.db.Dialect == "sqlite" { // its writers wait for each other, without an order
			o.traffic.Pause *= 5
		}
		relays := map[string]*process.Process{}
		join := func(name string) {
			s := o.settings
			s.Name = name
			if name == "b" { // which will die
				s.Lease = 4 * time.Second
			}
			relays[name] = relayproc.Start(t, s)
		}
		stop := o.load(o.traffic, 2)
		for _, name := range []string{"a", "b", "c"} {
			join(name)
		}
		o.fair(relays)
		o.flows()
		join("joins")
		o.fair(relays)
		o.flows()
		relays["a"].Close()
		delete(relays, "a")
		o.fair(relays)
		o.flows()
		relays["b"].Kill()
		delete(relays, "b")
		died := time.Now()
		o.fair(relays)
		t.Logf("the shards of the dead were taken after %v", time.Since(died).Round(10*time.Millisecond))
		o.flows()
		stop()
		messages, duplicates := o.check()
		t.Logf("%d messages, %d duplicates", messages, duplicates)
		for id, by := range o.broker.senders() {
			assert.True(t, len(slices.Compact(slices.Sorted(slices.Values(by)))) == 1 || slices.Contains(by, "b"), "message %s was sent by %v", id, by)
		}
		for _, p := range relays {
			p.Close()
		}
	}))
}

// fair waits until the relays share all shards fairly, by the tables and by what they were
// told.
func (o *town) fair(relays map[string]*process.Process) {
	o.Helper()
	rig.Eventually(o, fmt.Sprintf("%d shards are shared fairly by %d", shards, len(relays)), func() bool {
		owners, sum := o.owners(), 0
		for name, p := range relays {
			n := owners[name]
			sum += n
			told := p.Events(relayproc.Share)
			if n < shards/len(relays) || n > (shards-1)/len(relays)+1 || len(told) == 0 {
				return false
			}
			if told[len(told)-1].Counts["shards"] != n {
				return false
			}
		}
		return sum == shards
	})
}

package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// Two services, each with business transactions, of which a third roll back, and a relay,
// are killed in turn at moments that nobody chose.
func TestKilledUnderLoad(t *testing.T) {
	testdb.Turn(t, 1, loads)
	t.Parallel()
	const workers = 3
	kills := testdb.Rounds(3, 10)
	testdb.Some(t, 1, testdb.With(newTown, func(t *testing.T, o *town) {
		o.settings.Lease = 6 * time.Second
		o.settings.Traffic = workers
		started := 0
		service := func() *process.Process {
			s := o.settings
			started++
			s.Name = fmt.Sprintf("service %d", started)
			return relayproc.Start(t, s)
		}
		services := []*process.Process{service(), service()}
		again := 0
		for n := range kills {
			sent := o.broker.total() + 50 + rand.IntN(150)
			rig.Eventually(o, "messages are sent", func() bool { return o.broker.total() >= sent })
			services[n%2].Kill()
			again += o.unwritten()
			services[n%2] = service()
		}
		for _, p := range services {
			p.Close()
		}
		o.settings.Traffic = 0
		last := service()
		messages, duplicates := o.check()
		last.Close()
		t.Logf("%d kills: %d messages, %d duplicates, at most %d", kills, messages, duplicates, again)
		assert.LessOrEqual(t, duplicates, again)
	}))
}

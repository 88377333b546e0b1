package outbox_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	relayproc.Main()
	testdb.Overlap(8)
	m.Run()
}

// Tests of one kind take turns: one of each runs a day.
var (
	outages = []string{"TestOutagesUnderLoad", "TestTroubleStopsNothingElse"}
	loads   = []string{"TestKilledUnderLoad", "TestProcessesJoinLeaveAndDieUnderLoad"}
	freezes = []string{"TestAFrozenRelaySendsNothingAhead", "TestAFrozenRelayMarksNothingLate", "TestARelayFrozenInAWriteOffStopsNoOther"}
)

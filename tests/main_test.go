package tests_test

import (
	"os"
	"slices"
	"testing"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	process.Main()
	relayproc.Main()
	testdb.Overlap(8)
	code := m.Run()
	_ = os.RemoveAll(builds)
	_ = os.RemoveAll(source)
	os.Exit(code)
}

// conformanceBodies is every behaviour that touches SQL.
var conformanceBodies = slices.Concat(deliveryBodies, keyBodies, twinBodies, transactionBodies,
	duplicateBodies, outcomeBodies, parkingBodies, retentionBodies, inputBodies, orderBodies,
	replayBodies, importBodies, pluginBodies, lostBodies, failedCommitBodies, formerBodies, panicBodies, panicOutboxBodies, panicBackgroundBodies)

// TestConformance runs every behaviour that touches SQL on every database.
func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, conformanceBodies)
}

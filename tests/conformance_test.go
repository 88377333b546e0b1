package tests_test

import (
	"slices"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

// conformanceBodies is every behaviour that touches SQL.
var conformanceBodies = slices.Concat(deliveryBodies, keyBodies, twinBodies, transactionBodies,
	duplicateBodies, outcomeBodies, parkingBodies, retentionBodies, inputBodies, orderBodies,
	replayBodies, importBodies, pluginBodies, lostBodies, failedCommitBodies, formerBodies, panicBodies, panicOutboxBodies, panicBackgroundBodies)

// TestConformance runs every behaviour that touches SQL on every database.
func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, conformanceBodies)
}

package tests_test

import (
	"slices"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestConformance runs every behaviour that touches SQL on every database.
func TestConformance(t *testing.T) {
	testdb.Conformance(t, slices.Concat(deliveryBodies, keyBodies, twinBodies, transactionBodies,
		outcomeBodies, parkingBodies, retentionBodies, inputBodies, orderBodies))
}

package interop_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(4) // the tests mostly wait for brokers
	m.Run()
}

package matrix_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(12) // a play waits for leases and pauses most of its time
	m.Run()
}

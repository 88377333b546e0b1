package gate_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	process.As(shareName, serve)
	testdb.Overlap(4)
	m.Run()
}

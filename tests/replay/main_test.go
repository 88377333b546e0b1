package replay_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	process.As(replayingName, rebuild)
	testdb.Overlap(6)
	m.Run()
}

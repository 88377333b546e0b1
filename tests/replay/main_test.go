package replay_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	replayingMain()
	testdb.Overlap(6)
	os.Exit(m.Run())
}

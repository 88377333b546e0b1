package gate_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	shareMain()
	testdb.Overlap(4)
	os.Exit(m.Run())
}

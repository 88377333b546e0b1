package deadletter_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(8)
	os.Exit(m.Run())
}

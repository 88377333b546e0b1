package durable_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	servedMain()
	testdb.Overlap(6)
	os.Exit(m.Run())
}

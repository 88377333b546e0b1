package tests_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	process.Main()
	relayproc.Main()
	testdb.Overlap(8)
	code := m.Run()
	_ = os.RemoveAll(builds)
	_ = os.RemoveAll(source)
	os.Exit(code)
}

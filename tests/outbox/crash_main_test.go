package outbox_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	relayproc.Main()
	testdb.Overlap(8)
	m.Run()
}

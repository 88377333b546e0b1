package outbox_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/outbox/relayproc"
)

func TestMain(m *testing.M) {
	relayproc.Main()
	os.Exit(m.Run())
}

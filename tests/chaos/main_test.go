package chaos_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/process"
)

func TestMain(m *testing.M) {
	process.As(memberName, serve)
	os.Exit(m.Run())
}

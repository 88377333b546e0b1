package chaos_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/process"
)

func TestMain(m *testing.M) {
	process.As(memberName, serve)
	m.Run()
}

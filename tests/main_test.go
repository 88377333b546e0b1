package tests_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/process"
)

func TestMain(m *testing.M) {
	process.Main()
	os.Exit(m.Run())
}

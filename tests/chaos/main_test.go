package chaos_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	memberMain()
	os.Exit(m.Run())
}

// Package original_test proves that what is hashed and stored is the message as it came,
// whatever middlewares and handlers make of it, and that each attempt begins with it.
package original_test

import (
	"os"
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(4)
	os.Exit(m.Run())
}

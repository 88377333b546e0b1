package testdb

import (
	"fmt"
	"os"
	"testing"
)

// ran notes, in the file that MILLRACE_TEST_RAN names, that something ran on a database: make test adds
// up how often on each, so that nobody has to believe that nothing was left out.
func ran(t testing.TB, what, dialect string) {
	t.Helper()
	name := os.Getenv("MILLRACE_TEST_RAN")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(file, "%s on %s\n", what, dialect) // one write, so that packages do not mix
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		t.Errorf("testdb: MILLRACE_TEST_RAN: %v", err)
	}
}

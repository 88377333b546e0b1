package tests_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// full runs the command with its results on a full disk.
func (s *shop) full(args ...string) result {
	s.Helper()
	disk, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(s, err)
	defer disk.Close() //nolint:errcheck // nothing is written
	cmd := command(s.Context(), s.db.DSN, args...)
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = disk, &problems
	return result{code: exit(s.T, cmd.Run()), err: problems.String()}
}

// TestResultsThatCannotBeWrittenAreAnError: a script that keeps them would go on without.
func TestResultsThatCannotBeWrittenAreAnError(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no full disk")
	}
	s := newShop(t, testdb.On(t, "sqlite"))
	for _, args := range [][]string{
		{"version"}, {"--version"}, {"list"}, {"list", "-o", "json"}, {"status"}, {"status", "--watch"}, {"schema", "sqlite"},
		{"policy", "schema"}, {"audit", "-o", "csv"}, {"completion", "bash"}, {"list", "--help"},
	} {
		r := s.full(args...)
		assert.Equal(t, 1, r.code, "%q", args)
		assert.Regexp(t, `^millrace: .*: no space left on device\n$`, r.err, "%q", args)
	}
	r := s.full("discard", "7")
	assert.Equal(t, 2, r.code, "nothing was changed")
	assert.Contains(t, r.err, "write results")
	assert.NotContains(t, r.err, "done")
	r = s.full("discard", "4711", "--reason", "x", "--yes")
	assert.Equal(t, 3, r.code)
	assert.NotContains(t, r.err, "done")
	r = s.full("discard", "7", "--reason", "x", "--yes")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "What the command was to do is done")
	assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_audit`))
}

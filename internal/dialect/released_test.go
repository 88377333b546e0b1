package dialect_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReleasedMigrationsAreNotChanged: a database that ran one does not run it again, so a
// change of the schema is a new file with the next number. The sums are those of the release
// that tests/release-before names, by: sha256sum */*.sql > released.sum.
func TestReleasedMigrationsAreNotChanged(t *testing.T) {
	text, err := os.ReadFile("released.sum")
	require.NoError(t, err)
	last := map[string]string{}
	released := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		sum, name, found := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, found, line)
		script, err := os.ReadFile(name)
		require.NoError(t, err, "a released migration is missing")
		now := sha256.Sum256(script)
		assert.Equal(t, sum, hex.EncodeToString(now[:]), "%s was released: put the change into a migration of its own", name)
		dir, file := filepath.Split(name)
		last[dir], released[name] = max(last[dir], file), true
	}
	require.Len(t, last, 3, "the databases")
	all, err := filepath.Glob("*/*.sql")
	require.NoError(t, err)
	count := map[string]int{}
	for _, name := range all {
		dir, file := filepath.Split(name)
		count[dir]++
		assert.Equal(t, fmt.Sprintf("%04d", count[dir]), file[:4], "%s: a migration's place among the files is its version", name)
		assert.True(t, released[name] || file > last[dir], "%s comes before a released migration, so nobody runs it", name)
	}
}

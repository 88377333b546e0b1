package tests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTranscripts: what docs/command.md and docs/policy-file.md show is what the command prints.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	printed := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		printed[string(text)] = true
	}
	for _, name := range []string{"command.md", "policy-file.md"} {
		document, err := os.ReadFile(filepath.Join("../../../docs", name))
		require.NoError(t, err)
		blocks := strings.Split(string(document), "```console\n")[1:]
		assert.NotEmpty(t, blocks)
		for _, block := range blocks {
			transcript, _, ended := strings.Cut(block, "```")
			require.True(t, ended)
			assert.True(t, printed[transcript], "no file of testdata has:\n%s", transcript)
		}
	}
}

package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

// TestDocumentedFilesAreGood reads what the documentation shows.
func TestDocumentedFilesAreGood(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../docs/policy*.md")
	require.NoError(t, err)
	found := 0
	for _, document := range append(documents, "../docs/shadow.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			file, _, ended := strings.Cut(block, "```")
			require.True(t, ended, document)
			_, err := policy.Read(strings.NewReader(file), document)
			assert.NoError(t, err)
			found++
		}
	}
	assert.NotZero(t, found)
}

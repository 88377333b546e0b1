package incident

import (
	"os"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Say tells a paragraph.
func (n *Night) Say(text string) { n.Told.WriteString("\n" + text + "\n") }

// Compare asserts that the section under a heading of docs/a-night.md, in this file, is what was told; or writes it.
func (n *Night) Compare(file, heading string, write bool) {
	n.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // a document
	require.NoError(n, err)
	before, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(n, found, "%s has no section %q", file, heading)
	after := ""
	if i := strings.Index(section, "\n## "); i >= 0 {
		section, after = section[:i], section[i:]
	}
	if write {
		all := before + "\n## " + heading + "\n" + n.Told.String() + after
		require.NoError(n, os.WriteFile(file, []byte(all), 0o644)) //nolint:gosec // a document
		return
	}
	assert.Equal(n, section, n.Told.String(), "run with -update")
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMutantsApply holds the mutants to the code that they break.
func TestMutantsApply(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		require.NoError(t, err, m.name)
		broken, err := m.apply(string(source))
		require.NoError(t, err, m.name)
		assert.NotEqual(t, string(source), broken, m.name)
		assert.False(t, names[m.name], "two mutants are named %q", m.name)
		names[m.name] = true
	}
}

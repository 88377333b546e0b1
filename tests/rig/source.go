package rig

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var speaksOfDefault = regexp.MustCompile(`[Dd]efaults? to|\(default |By default`)

// DefaultsAsCommented fails if the comment of a field lacks the text that says has for "Struct.Field", or
// if a comment mentions a default and says has no entry for the field. Each source is a file and the
// name of a struct in it.
func DefaultsAsCommented(t *testing.T, says map[string]string, sources ...[2]string) {
	t.Helper()
	for _, source := range sources {
		for field, comment := range fieldComments(t, source[0], source[1]) {
			name := source[1] + "." + field
			want, known := says[name]
			delete(says, name)
			if !speaksOfDefault.MatchString(comment) {
				assert.False(t, known, "%s lost its comment", name)
				continue
			}
			if assert.True(t, known, "%s is not in the table", name) {
				assert.Contains(t, comment, want, name)
			}
		}
	}
	assert.Empty(t, says, "no such fields")
}

// fieldComments returns the comments of the fields of a struct, each on one line.
func fieldComments(t *testing.T, file, kind string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	found := make(map[string]string)
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != kind {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			for _, name := range field.Names {
				found[name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
		return false
	})
	require.NotEmpty(t, found)
	return found
}

// Promtool runs promtool, which must succeed, and returns its output. If promtool is not installed, the
// test is skipped, or fails if MILLRACE_TEST_ALL is set.
func Promtool(t *testing.T, args ...string) string {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("MILLRACE_TEST_ALL") != "" {
			require.NoError(t, err, "tests/services.sh installs it")
		}
		t.Skip("promtool is not installed")
	}
	out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	return string(out)
}

// Build builds a command into a folder, as it is built for a release.
func Build(folder, command string) (program string, err error) {
	program = filepath.Join(folder, path.Base(command))
	build := exec.Command("go", "build", "-o", program, command)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", command, err, said)
	}
	return program, nil
}

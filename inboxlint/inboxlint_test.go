package inboxlint_test

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/packages"

	"github.com/millrace-go/millrace/inboxlint"
)

// asCommand makes this program the command inboxlint.
const asCommand = "INBOXLINT_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		multichecker.Main(inboxlint.Analyzers()...)
	}
	os.Exit(m.Run())
}

// TestFindings holds the findings in testdata to its comments: // want and a regular expression for each. All analyzers
// run on all packages, so what is right for one must be right for the others. The packages use the real Watermill, sqlx and
// Millrace, which the workspace has and no go.mod requires for this.
func TestFindings(t *testing.T) {
	t.Parallel()
	folders, err := filepath.Glob("testdata/*") // ./... leaves them out
	require.NoError(t, err)
	require.Len(t, folders, len(inboxlint.Analyzers()), "a package for each analyzer")
	for i := range folders {
		folders[i] = "./" + folders[i]
	}
	loaded := load(t, false, folders...)
	found, _ := analyze(t, loaded)
	for _, pkg := range loaded {
		for _, file := range pkg.Syntax {
			for at, patterns := range wanted(t, pkg, file) {
				for _, pattern := range patterns {
					if !take(found, at, regexp.MustCompile(pattern)) {
						t.Errorf("%s: not found: %s", at, pattern)
					}
				}
			}
		}
	}
	for at, messages := range found {
		t.Errorf("%s: %q", at, messages)
	}
}

var want = regexp.MustCompile("`[^`]+`")

// wanted returns the expressions in the comments of a file, by the line.
func wanted(t *testing.T, pkg *packages.Package, file *ast.File) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if text, ok := strings.CutPrefix(comment.Text, "// want "); ok {
				at := pkg.Fset.Position(comment.Pos())
				for _, quoted := range want.FindAllString(text, -1) {
					place := fmt.Sprintf("%s:%d", at.Filename, at.Line)
					all[place] = append(all[place], strings.Trim(quoted, "`"))
				}
			}
		}
	}
	require.NotEmpty(t, all, pkg.PkgPath)
	return all
}

func take(found map[string][]string, at string, pattern *regexp.Regexp) bool {
	for i, text := range found[at] {
		if pattern.MatchString(text) {
			found[at] = append(found[at][:i], found[at][i+1:]...)
			if len(found[at]) == 0 {
				delete(found, at)
			}
			return true
		}
	}
	return false
}

// TestExamplesAreRight: nothing is found in _examples, in the handlers of docs/your-stack.md, and in the Examples of the
// packages that handlers use.
func TestExamplesAreRight(t *testing.T) {
	t.Parallel()
	modules, err := filepath.Glob("../_examples/*/go.mod")
	require.NoError(t, err)
	require.NotEmpty(t, modules)
	patterns := []string{"../tests/stacks", "../middleware", "../inbox", "../outbox", "../pubsub", "../policy", "../pgxdb"}
	for _, module := range modules {
		patterns = append(patterns, "./"+filepath.Dir(module)+"/...")
	}
	found, handlers := analyze(t, load(t, true, patterns...))
	assert.Greater(t, handlers, 60, "they have handlers")
	for at, messages := range found {
		t.Errorf("%s: %q", at, messages)
	}
}

// TestVet runs the analyzers as go vet does, and as a command. go vet runs them on each package that is imported too, so
// this one imports little: it stands for the module of Millrace.
func TestVet(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module github.com/millrace-go/millrace\n\ngo 1.25\n",
		"inbox/inbox.go": "package inbox\n\nfunc ByFunc(name string, f func() (string, error)) {}\n",
		"main.go": "package main\n\nimport (\n\t\"time\"\n\n\t\"github.com/millrace-go/millrace/inbox\"\n)\n\n" +
			"func main() {\n\tinbox.ByFunc(\"now\", func() (string, error) { return time.Now().String(), nil })\n}\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	for _, c := range []struct {
		args  []string
		found bool
	}{
		{[]string{"go", "vet", "-vettool=" + self, "."}, true},
		{[]string{"go", "vet", "-vettool=" + self, "-inboxkey=false", "."}, false},
		{[]string{self, "."}, true},
		{[]string{self, "-inboxkey=false", "."}, false},
	} {
		cmd := exec.CommandContext(t.Context(), c.args[0], c.args[1:]...) //nolint:gosec // this program, or go
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=", asCommand+"=1")
		said, err := cmd.CombinedOutput()
		assert.Equal(t, c.found, err != nil, "%s: %s", c.args, said)
		assert.Equal(t, c.found, strings.Contains(string(said), "main.go:10:54: time.Now makes another key"), "%s: %s", c.args, said)
	}
}

// TestLinks: each analyzer names a section of the documents.
func TestLinks(t *testing.T) {
	t.Parallel()
	overview, err := os.ReadFile("../docs/inboxlint.md")
	require.NoError(t, err)
	for _, a := range inboxlint.Analyzers() {
		page, anchor, _ := strings.Cut(a.URL[strings.LastIndex(a.URL, "/")+1:], "#")
		text, err := os.ReadFile("../docs/" + page)
		require.NoError(t, err)
		var anchors []string
		for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
			plain := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
			anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
		}
		assert.Contains(t, anchors, anchor, a.URL)
		assert.Contains(t, string(overview), "`"+a.Name+"`")
	}
}

// environment has the workspace, since what is analyzed is in several modules.
func environment() []string {
	workspace, err := filepath.Abs("../go.work")
	if err != nil {
		panic(err)
	}
	return append(os.Environ(), "GOWORK="+workspace, "GOFLAGS=")
}

func load(t *testing.T, tests bool, patterns ...string) []*packages.Package {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedExportFile |
			packages.NeedTypes | packages.NeedTypesSizes | packages.NeedTypesInfo | packages.NeedSyntax | packages.NeedModule,
		Tests: tests, Env: environment(), Context: t.Context(),
	}, patterns...)
	require.NoError(t, err)
	for _, pkg := range loaded {
		for _, err := range pkg.Errors {
			t.Errorf("%s: %v", pkg.ID, err)
		}
	}
	require.False(t, t.Failed())
	return loaded
}

// analyze returns the messages of all analyzers by their lines, and how many handlers there are.
func analyze(t *testing.T, loaded []*packages.Package) (found map[string][]string, handlers int) {
	t.Helper()
	graph, err := checker.Analyze(append(inboxlint.Analyzers(), inboxlint.Service), loaded, nil)
	require.NoError(t, err)
	found = map[string][]string{}
	seen := map[string]bool{} // a package may be there again, with its tests
	for _, act := range graph.Roots {
		require.NoError(t, act.Err)
		handlers += inboxlint.Handlers(act.Result)
		for _, d := range act.Diagnostics {
			at := act.Package.Fset.Position(d.Pos)
			if line := fmt.Sprintf("%s:%d", at.Filename, at.Line); !seen[at.String()+d.Message] {
				seen[at.String()+d.Message] = true
				found[line] = append(found[line], d.Message)
			}
		}
	}
	return found, handlers
}

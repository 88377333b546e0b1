package tests_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/millrace-go/millrace"

// arrows says which parts of the module each part may import, besides itself. The
// part of a package is the first element of its path; "" is the root package.
var arrows = map[string][]string{
	"":           {"middleware", "inbox", "outbox", "pubsub", "tracing", "internal"},
	"middleware": {"inbox", "internal"},
	"inbox":      {"internal"},
	"outbox":     {"internal"},
	"pubsub":     {"inbox", "outbox", "internal"},
	"tracing":    {"inbox", "outbox", "internal"},
	"replay":     {"inbox", "outbox", "internal"},
	"metrics":    {"inbox", "outbox", "internal"},
	"pgxdb":      {"inbox", "outbox", "internal"},
	"mysqldb":    {"internal"},
	"dashboard":  {"inbox", "outbox", "internal", "internal/problems"},
	"health":     {"inbox", "outbox", "internal", "internal/problems"},
	"inboxlint":  {},
	"policy":     {"middleware", "inbox", "outbox", "pubsub", "metrics", "internal"},
	"internal":   {},
	"cmd":        {"", "middleware", "inbox", "outbox", "pubsub", "metrics", "tracing", "dashboard", "policy", "replay", "internal", "internal/problems"},
	"tests":      {"", "middleware", "inbox", "outbox", "pubsub", "metrics", "tracing", "mysqldb", "pgxdb", "dashboard", "health", "policy", "replay", "internal", "internal/problems", "cmd"},

	// What the command, the dashboard and health share stands above inbox and outbox, and is no promise to anyone.
	"internal/problems": {"inbox", "outbox", "internal"},
}

// forbidden says what a part may not import from outside the module.
var forbidden = map[string][]string{
	"middleware": {"database/sql", "github.com/jmoiron/sqlx"},
	"outbox":     {cqrs},
	"inbox":      {cqrs},
	"pubsub":     {cqrs},
	"dashboard":  {cqrs},
}

// cqrs brings Protobuf along, which services without it should not have to link.
const cqrs = "github.com/ThreeDotsLabs/watermill/components/cqrs"

func TestArchitecture(t *testing.T) {
	sources := readModule(t)
	require.Contains(t, sources, "tests/testdb/testdb.go", "the module was not read")
	for _, problem := range checkArchitecture(sources) {
		t.Error(problem)
	}
}

// TestTheFaceOfInboxIsShort holds go doc to two screens: what it lists is for the author of a service.
func TestTheFaceOfInboxIsShort(t *testing.T) {
	t.Parallel()
	text, err := exec.CommandContext(t.Context(), "go", "doc", "../inbox").Output()
	require.NoError(t, err)
	require.Contains(t, string(text), "type Store struct")
	assert.LessOrEqual(t, strings.Count(string(text), "\n"), 100, "put what only others need under inbox/admin, lease, payload or internal")
}

// TestArchitectureCatches proves that each rule can fail.
func TestArchitectureCatches(t *testing.T) {
	const comment = "// Package p is good.\n"
	importing := func(path string) string { return comment + "package p\n\nimport _ " + strconv.Quote(path) + "\n" }
	for _, c := range []struct{ file, source, want string }{
		{"inbox/a.go", importing(module + "/middleware"), "inbox/a.go: inbox must not import middleware"},
		{"internal/x/a.go", importing(module), "internal/x/a.go: internal must not import the root package"},
		{"inbox/a.go", importing(module + "/internal/problems"), "inbox/a.go: inbox must not import internal/problems"},
		{"internal/problems/a.go", importing(module + "/dashboard"), "internal/problems/a.go: internal/problems must not import dashboard"},
		{"outbox/a.go", importing(cqrs), "outbox/a.go: outbox must not import " + cqrs},
		{"util/a.go", importing("fmt"), "util/a.go: util is not a part that the design knows"},
		{"internal/x/a.go", "package x\n", "internal/x: the package has no comment"},
		{"inbox/a.go", "pakage p", "inbox/a.go: inbox/a.go:1:1: expected 'package', found pakage"},
	} {
		assert.Equal(t, []string{c.want}, checkArchitecture(map[string]string{c.file: c.source}))
	}
}

// readModule returns the Go sources of the repository by their slashed paths, of all modules, without
// what ./... does not match.
func readModule(t *testing.T) map[string]string {
	t.Helper()
	sources := repositoryFiles(t, os.DirFS(".."), ".go")
	maps.DeleteFunc(sources, func(name, _ string) bool { return slices.ContainsFunc(strings.Split(name, "/"), invisible) })
	return sources
}

// readText returns the text of a file.
func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// repositoryFiles returns the texts of files by their slashed paths, which end with suffix. It passes over bin, and over
// folders that are hidden.
func repositoryFiles(t *testing.T, repository fs.FS, suffix string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, fs.WalkDir(repository, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "bin"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, suffix):
			return nil
		}
		text, err := fs.ReadFile(repository, name)
		texts[name] = string(text)
		return err
	}))
	require.NotEmpty(t, texts)
	return texts
}

func invisible(base string) bool {
	return base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

// checkArchitecture returns what the sources, by their slashed paths, break.
// Test files may import what they like. The linters see to the drivers and to comments.
func checkArchitecture(sources map[string]string) (problems []string) {
	commented := map[string]bool{} // by folder
	fset := token.NewFileSet()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, sources[name], parser.ParseComments)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		part := partOf(path.Dir(name))
		for _, p := range checkImports(part, file) {
			problems = append(problems, name+": "+p)
		}
		folder := path.Dir(name)
		commented[folder] = commented[folder] || file.Doc != nil
	}
	for _, folder := range slices.Sorted(maps.Keys(commented)) {
		if !commented[folder] {
			problems = append(problems, folder+": the package has no comment")
		}
	}
	return problems
}

// partOf returns the part that a folder of the module belongs to.
func partOf(folder string) string {
	if _, above := arrows[folder]; above {
		return folder
	}
	part, _, _ := strings.Cut(folder, "/")
	return strings.TrimPrefix(part, ".")
}

func checkImports(part string, file *ast.File) (problems []string) {
	allowed, known := arrows[part]
	if !known {
		return []string{part + " is not a part that the design knows"}
	}
	for _, spec := range file.Imports {
		imported := strings.Trim(spec.Path.Value, "`\"")
		if isOrBelow(imported, forbidden[part]) {
			problems = append(problems, part+" must not import "+imported)
		}
		if !isOrBelow(imported, []string{module}) {
			continue
		}
		to := partOf(strings.TrimPrefix(strings.TrimPrefix(imported, module), "/"))
		if to != part && !slices.Contains(allowed, to) {
			if to == "" {
				to = "the root package"
			}
			problems = append(problems, part+" must not import "+to)
		}
	}
	return problems
}

func isOrBelow(imported string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return imported == root || strings.HasPrefix(imported, root+"/")
	})
}

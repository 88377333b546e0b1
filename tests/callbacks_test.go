package tests_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCallbacksDocument holds docs/callbacks.md to the code: it says what a panic does in each function of the
// service that an exported field takes, and in each interface that the service may implement.
func TestCallbacksDocument(t *testing.T) {
	document, err := os.ReadFile("../docs/callbacks.md")
	require.NoError(t, err)
	found := callbacks(t, readModule(t))
	require.Contains(t, found, "outbox.Config.AfterCommit")
	require.Contains(t, found, "lease.Store")
	for _, name := range found {
		assert.True(t, strings.Contains(string(document), "`"+name+"`"), "docs/callbacks.md does not tell of %s", name) // it is too long to print
	}
}

// TestCallbacksAreFound proves that each kind is.
func TestCallbacksAreFound(t *testing.T) {
	source := `package p

type Config struct {
	A, b func()
	C, D int
	E    KeyFunc
	F    []Observer
	G    message.Publisher
	H    map[string]inbox.VersionFunc
}

type KeyFunc func()
type Observer any
type Interface interface{ M() }
type own interface{ M() }
type config struct { A func() }
`
	assert.Equal(t, []string{
		"p.Config.A", "p.Config.E", "p.Config.F", "p.Config.G", "p.Config.H", "p.Interface", "p.KeyFunc",
	}, callbacks(t, map[string]string{"a/p/a.go": source, "a/p/a_test.go": "", "internal/q/q.go": source, "tests/q.go": source}))
}

// calls are types of values with methods of the service's.
var calls = []string{
	"LoggerAdapter", "Publisher", "Subscriber", "Key", "Codec", "Blobs", "Observer", "TracerProvider",
	"TextMapPropagator",
}

// callbacks returns the names of exported fields and types through which the service is called.
func callbacks(t *testing.T, sources map[string]string) (names []string) {
	t.Helper()
	for _, file := range slices.Sorted(maps.Keys(sources)) {
		in := partOf(path.Dir(file))
		if slices.Contains([]string{"internal", "tests", "cmd", "policy", "_examples", ""}, in) ||
			strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "inbox/inboxtest/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, sources[file], 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, is := n.(*ast.TypeSpec); is && spec.Name.IsExported() {
				names = append(names, callbacksOf(path.Base(path.Dir(file))+"."+spec.Name.Name, spec.Type)...)
			}
			return true
		})
	}
	slices.Sort(names)
	return names
}

func callbacksOf(name string, of ast.Expr) (names []string) {
	switch of := of.(type) {
	case *ast.InterfaceType, *ast.FuncType:
		return []string{name}
	case *ast.StructType:
		for _, field := range of.Fields.List {
			for _, n := range field.Names {
				if n.IsExported() && isCallback(field.Type) {
					names = append(names, name+"."+n.Name)
				}
			}
		}
	}
	return names
}

func isCallback(of ast.Expr) bool {
	named := func(name string) bool { return slices.Contains(calls, name) || strings.HasSuffix(name, "Func") }
	switch of := of.(type) {
	case *ast.FuncType:
		return true
	case *ast.Ident:
		return named(of.Name)
	case *ast.SelectorExpr:
		return named(of.Sel.Name)
	case *ast.ArrayType:
		return isCallback(of.Elt)
	case *ast.MapType:
		return isCallback(of.Value)
	}
	return false
}

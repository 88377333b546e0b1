package tests_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
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
	document := readText(t, "../docs/callbacks.md")
	found := callbacks(t, readModule(t))
	for _, one := range []string{ // of each kind
		"outbox.Config.AfterCommit", "lease.Store", "inbox.Config.Observers", "middleware.Inbox.Outbox", "inbox.VersionFunc", "shadow.Config.Versions",
	} {
		require.Contains(t, found, one)
	}
	for _, name := range found {
		assert.True(t, strings.Contains(document, "`"+name+"`"), "docs/callbacks.md does not tell of %s", name) // it is too long to print
	}
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

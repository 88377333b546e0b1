package tests_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nameless are sentinels that do not begin with the name of their package, and why.
var nameless = map[string]string{
	"outbox.ErrNotMigrated": ofDatabase, "outbox.ErrReadOnly": ofDatabase,
	"outbox.ErrUnavailable": ofDatabase, "outbox.ErrTooLarge": ofDatabase,
	"inbox.ErrNotMigrated": ofDatabase, "inbox.ErrReadOnly": ofDatabase, "inbox.ErrUnavailable": ofDatabase,

	"inbox.ErrCollision": ofInbox, "inbox.ErrErased": ofInbox, "inbox.ErrGapWait": ofInbox, "inbox.ErrHoldsTx": ofInbox,
	"inbox.ErrInDoubt": ofInbox, "inbox.ErrInProgress": ofInbox, "inbox.ErrKeyChanged": ofInbox,
	"inbox.ErrLeaseLost": ofInbox, "inbox.ErrLost": ofInbox, "inbox.ErrNoPlugin": ofInbox, "inbox.ErrNoQueue": ofInbox,
	"inbox.ErrNoVersion": ofInbox, "inbox.ErrNotServed": ofInbox, "inbox.ErrSwallowed": ofInbox,
	"inbox.ErrTxEndedByHandler": ofInbox, "inbox.ErrTxNotUsed": ofInbox, "inbox.ErrUnknownType": ofInbox,
	"inbox.ErrNotFound": ofInbox, "inbox.ErrWrongState": ofInbox,
	"httpkey.ErrOneKey": ofInbox,
}

const (
	ofDatabase = "inbox and outbox have it in common, and wrap it under their own names"
	ofInbox    = "inbox wraps it in an error that names the consumer"
)

// TestSentinelsBeginWithTheirPackage keeps the rule of package internal/prefix.
func TestSentinelsBeginWithTheirPackage(t *testing.T) {
	t.Parallel()
	sentinels := sentinelsOf(t, readModule(t))
	require.Contains(t, sentinels, "outbox.ErrNoTx", "the module was not read")
	for name, text := range sentinels {
		if nameless[name] == "" {
			assert.Equal(t, 1, strings.Count(text, beginning(name)), "%s: %q", name, text)
			assert.True(t, strings.HasPrefix(text, beginning(name)), "%s: %q", name, text)
		}
	}
}

func beginning(name string) string {
	of, _, _ := strings.Cut(name, ".")
	return of + ": "
}

// sentinelsOf returns the texts of the exported sentinels of product packages, by their names.
func sentinelsOf(t *testing.T, sources map[string]string) map[string]string {
	t.Helper()
	values, public := map[string]ast.Expr{}, map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(sources)) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		part, _, _ := strings.Cut(file, "/")
		parsed, err := parser.ParseFile(token.NewFileSet(), file, sources[file], parser.SkipObjectResolution)
		require.NoError(t, err)
		for name, value := range errorsIn(parsed) {
			name = path.Base(path.Dir(file)) + "." + name
			values[name] = value
			public[name] = !slices.Contains([]string{"internal", "tests", "cmd"}, part)
		}
	}
	texts := map[string]string{}
	for name, value := range values {
		if public[name] {
			texts[name] = sentinelText(values, value)
		}
	}
	return texts
}

// errorsIn returns the variables of a file that are exported and begin with Err.
func errorsIn(file *ast.File) map[string]ast.Expr {
	found := map[string]ast.Expr{}
	for _, d := range file.Decls {
		group, is := d.(*ast.GenDecl)
		if !is || group.Tok != token.VAR {
			continue
		}
		for _, s := range group.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if strings.HasPrefix(name.Name, "Err") && i < len(spec.Values) {
					found[name.Name] = spec.Values[i]
				}
			}
		}
	}
	return found
}

// sentinelText follows an expression to the text of the error.
func sentinelText(values map[string]ast.Expr, value ast.Expr) string {
	switch v := value.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(v.Value)
		return text
	case *ast.BinaryExpr:
		return sentinelText(values, v.X) + sentinelText(values, v.Y)
	case *ast.CallExpr:
		if len(v.Args) > 0 {
			return sentinelText(values, v.Args[0])
		}
	case *ast.SelectorExpr:
		if of, is := v.X.(*ast.Ident); is && values[of.Name+"."+v.Sel.Name] != nil {
			return sentinelText(values, values[of.Name+"."+v.Sel.Name])
		}
	}
	return ""
}

package tests_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLogsDocument holds docs/logs.md to the code: it tells of each line that can be logged,
// at its level, and of no other.
func TestLogsDocument(t *testing.T) {
	logged, problems := logLines(readModule(t))
	document := readText(t, "../docs/logs.md")
	require.NotEmpty(t, logged)
	for _, problem := range append(problems, compareLogs(logged, documentedLogs(document))...) {
		t.Error(problem)
	}
}

// logLevels are the methods of a watermill.LoggerAdapter and how many arguments they have.
var logLevels = map[string]int{"Error": 3, "Info": 2, "Debug": 2, "Trace": 2}

// logLines returns the texts that the sources log, with their levels.
func logLines(sources map[string]string) (logged map[string]string, problems []string) {
	logged = map[string]string{}
	fset := token.NewFileSet()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		part := partOf(path.Dir(name))
		if strings.HasSuffix(name, "_test.go") || part == "tests" || strings.HasPrefix(name, "inbox/inboxtest/") ||
			strings.HasPrefix(name, "internal/steady/") { // which hands on what others say
			continue
		}
		file, err := parser.ParseFile(fset, name, sources[name], 0)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			method, is := call.Fun.(*ast.SelectorExpr)
			if !is || logLevels[method.Sel.Name] == 0 || len(call.Args) != logLevels[method.Sel.Name] {
				return true
			}
			if of, is := method.X.(*ast.Ident); is && of.Name == "http" { // http.Error answers a request
				return true
			}
			text, constant := textOf(call.Args[0])
			if !constant {
				at := fset.Position(call.Pos())
				problems = append(problems, fmt.Sprintf("%s:%d: the text of a log line must not change: "+
					"what changes goes into a field", at.Filename, at.Line))
				return true
			}
			logged[text] = method.Sel.Name
			return true
		})
	}
	return logged, problems
}

// textOf returns the text that literals make.
func textOf(e ast.Expr) (text string, constant bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, one := textOf(e.X)
		right, two := textOf(e.Y)
		return left + right, one && two
	}
	return "", false
}

var logRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (Error|Info|Debug|Trace) \\|")

func documentedLogs(document string) map[string]string {
	rows := map[string]string{}
	for _, row := range logRow.FindAllStringSubmatch(document, -1) {
		rows[row[1]] = row[2]
	}
	return rows
}

func compareLogs(logged, documented map[string]string) (problems []string) {
	for _, text := range slices.Sorted(maps.Keys(logged)) {
		switch said := documented[text]; said {
		case logged[text]:
		case "":
			problems = append(problems, fmt.Sprintf("docs/logs.md does not tell of %q, %s", text, logged[text]))
		default:
			problems = append(problems, fmt.Sprintf("%q is logged at %s, and docs/logs.md says %s", text, logged[text], said))
		}
	}
	for _, text := range slices.Sorted(maps.Keys(documented)) {
		if logged[text] == "" {
			problems = append(problems, fmt.Sprintf("docs/logs.md tells of %q, which is not logged", text))
		}
	}
	return problems
}

// nameless are sentinels that do not begin with the name of their package, and why.
var nameless = map[string]string{
	"outbox.ErrNotMigrated": ofDatabase, "outbox.ErrReadOnly": ofDatabase,
	"outbox.ErrUnavailable": ofDatabase, "outbox.ErrTooLarge": ofDatabase,
	"inbox.ErrNotMigrated": ofDatabase, "inbox.ErrReadOnly": ofDatabase, "inbox.ErrUnavailable": ofDatabase,

	"inbox.ErrCollision": ofInbox, "inbox.ErrErased": ofInbox, "inbox.ErrHoldsTx": ofInbox,
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

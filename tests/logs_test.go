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

package inboxlint

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzers returns all analyzers, in the order of docs/inboxlint.md. Each can be used alone.
func Analyzers() []*analysis.Analyzer {
	return slices.Clone(analyzers)
}

var analyzers = []*analysis.Analyzer{
	poolAnalyzer, publishAnalyzer, contextAnalyzer, goroutineAnalyzer, keyAnalyzer, errorAnalyzer, orderAnalyzer,
	commitAnalyzer, httpAnalyzer,
}

const documents = "https://github.com/millrace-go/millrace/blob/main/docs/"

// newAnalyzer returns an analyzer of what one page of the documents explains.
func newAnalyzer(name, doc, page string, check func(*findings)) *analysis.Analyzer {
	a := &analysis.Analyzer{Name: name, Doc: doc, URL: documents + page, Requires: []*analysis.Analyzer{serviceAnalyzer}}
	a.Run = func(pass *analysis.Pass) (any, error) {
		if s := pass.ResultOf[serviceAnalyzer].(*service); s != nil {
			check(&findings{service: s, pass: pass, seen: map[token.Pos]bool{}})
		}
		return nil, nil
	}
	return a
}

// findings are those of one analyzer in one package.
type findings struct {
	*service
	pass *analysis.Pass
	seen map[token.Pos]bool
}

// add reports a finding once, unless a comment on its line or the line above says why it is right.
func (f *findings) add(at ast.Node, format string, args ...any) {
	if f.seen[at.Pos()] {
		return
	}
	f.seen[at.Pos()] = true
	position := f.pass.Fset.Position(at.Pos())
	for _, line := range []int{position.Line, position.Line - 1} {
		if f.ignored[place{position.Filename, line}] {
			return
		}
	}
	f.pass.Report(analysis.Diagnostic{
		Pos: at.Pos(), End: at.End(), URL: f.pass.Analyzer.URL,
		Message: fmt.Sprintf(format, args...) + " (" + f.pass.Analyzer.URL + ")",
	})
}

// place is a line of a file.
type place struct {
	file string
	line int
}

// ignore is the comment that keeps a line from being reported: //inboxlint:ignore and the reason.
const ignore = "//inboxlint:ignore "

// ignoredLines returns the lines with that comment.
func ignoredLines(pass *analysis.Pass) map[place]bool {
	lines := map[place]bool{}
	for _, file := range pass.Files {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(comment.Text, ignore) {
					at := pass.Fset.Position(comment.Pos())
					lines[place{at.Filename, at.Line}] = true
				}
			}
		}
	}
	return lines
}

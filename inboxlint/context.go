package inboxlint

import (
	"go/ast"
	"go/types"
	"strings"
)

var contextAnalyzer = newAnalyzer("inboxcontext",
	"find statements of a handler's transaction without the context of its message\n\n"+
		"With context.Background, or a method that takes no context, neither Timeout nor the end of the service interrupts the\n"+
		"statement: it keeps its connection and the claim.",
	"pitfalls.md#a-statement-without-the-messages-context", checkContext)

func checkContext(f *findings) {
	for _, call := range calls(f.syntax) {
		signature, ok := f.info.TypeOf(call.Fun).(*types.Signature)
		if !ok {
			continue
		}
		on := f.onTx(call)
		switch {
		case on && withoutContext[f.called(call)]:
			f.add(call, "a statement without a context: neither Timeout nor shutdown ends it; give %s the context of the message", withContext(f.called(call)))
		case takesContext(signature) && len(call.Args) > 0 && f.isDetached(call.Args[0]) && (on || f.givenTx(call)):
			f.add(call.Args[0], "not the context of the message: neither Timeout nor shutdown ends a statement that has this one")
		}
	}
}

var withoutContext = union(
	methods("database/sql.Tx", "Exec", "Query", "QueryRow", "Prepare"),
	methods(sqlx+".Tx", "MustExec", "NamedExec", "NamedQuery", "Get", "Select", "Queryx", "QueryRowx", "Preparex", "PrepareNamed"),
)

// withContext returns the name of the method that does the same with a context.
func withContext(name string) string { return name[strings.LastIndex(name, ".")+1:] + "Context" }

func takesContext(signature *types.Signature) bool {
	return signature.Params().Len() > 0 && typeName(signature.Params().At(0).Type()) == "context.Context"
}

// givenTx reports whether an argument of a call is the transaction.
func (s *service) givenTx(call *ast.CallExpr) bool {
	for _, argument := range call.Args {
		if s.isTx(argument) {
			return true
		}
	}
	return false
}

var parents = set("context.WithCancel", "context.WithCancelCause", "context.WithTimeout", "context.WithTimeoutCause",
	"context.WithDeadline", "context.WithDeadlineCause", "context.WithValue", "context.WithoutCancel")

// isDetached reports whether a context is certainly made of context.Background or TODO.
func (s *service) isDetached(e ast.Expr) bool { return s.isDetachedIn(e, map[*ast.CallExpr]bool{}) }

func (s *service) isDetachedIn(e ast.Expr, seen map[*ast.CallExpr]bool) bool {
	return all(s.valuesOf(e), func(v value) bool {
		call, ok := v.expr.(*ast.CallExpr)
		if !ok || seen[call] {
			return ok
		}
		seen[call] = true
		switch name := s.called(call); {
		case name == "context.Background", name == "context.TODO":
			return true
		case parents[name] && len(call.Args) > 0:
			return s.isDetachedIn(call.Args[0], seen)
		}
		return false
	})
}

package inboxlint

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

var goroutineAnalyzer = newAnalyzer("inboxgoroutine",
	"find goroutines that have a handler's transaction and that the handler does not wait for\n\n"+
		"Chance decides whether what they write is committed, and nobody sees their errors.",
	"pitfalls.md#the-transaction-in-a-goroutine", checkGoroutines)

func checkGoroutines(f *findings) {
	for c := range f.syntax.Preorder((*ast.GoStmt)(nil), (*ast.CallExpr)(nil)) {
		started := ast.Node(nil)
		switch n := c.Node().(type) {
		case *ast.GoStmt:
			started = n.Call
		case *ast.CallExpr:
			if starters[f.called(n)] && len(n.Args) > 0 {
				started = n.Args[len(n.Args)-1]
			}
		}
		if started == nil {
			continue
		}
		around, ok := function(c)
		if !ok || !f.usesTx(started) || f.waits(around, c) {
			continue
		}
		f.add(c.Node(), "a goroutine with the transaction of a handler that does not wait for it: chance decides whether it writes before the commit, and its errors are lost")
	}
}

var starters = union(
	methods("golang.org/x/sync/errgroup.Group", "Go", "TryGo"), methods("sync.WaitGroup", "Go"), set("time.AfterFunc"),
)

// usesTx reports whether the transaction of the function around is used below a node: the variable, or a call that takes
// it from a context of the function around.
func (s *service) usesTx(n ast.Node) (found bool) {
	outside := func(v *types.Var) bool { return v.Pos() < n.Pos() || v.Pos() > n.End() }
	ast.Inspect(n, func(inner ast.Node) bool {
		switch inner := inner.(type) {
		case *ast.Ident:
			if v := s.variable(inner); v != nil && !v.IsField() && outside(v) && s.isTx(inner) {
				found = true
			}
		case *ast.CallExpr:
			if s.takes(inner) && len(inner.Args) == 1 {
				found = found || s.ofMessage(inner.Args[0], outside)
			}
		}
		return !found
	})
	return found
}

// ofMessage reports whether a context is that of a message which is declared where asked for.
func (s *service) ofMessage(ctx ast.Expr, outside func(*types.Var) bool) bool {
	return all(s.valuesOf(ctx), func(v value) bool {
		call, ok := v.expr.(*ast.CallExpr)
		if !ok || s.called(call) != message+".Message.Context" {
			return false
		}
		msg := s.variable(s.receiver(call))
		return msg != nil && !msg.IsField() && outside(msg)
	})
}

// waits reports whether a function may wait for what it starts at c: it calls a Wait, receives, or gives a channel or a
// group to somebody who may.
func (s *service) waits(around, c inspector.Cursor) (found bool) {
	ast.Inspect(bodyOf(around.Node()), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if selector, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr); ok && selector.Sel.Name == "Wait" {
				found = true
			}
			found = found || !contains(c.Node(), n) && s.givesAway(n)
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW && !contains(c.Node(), n)
		case *ast.SelectStmt:
			found = found || !contains(c.Node(), n)
		case *ast.RangeStmt:
			if _, channel := s.info.TypeOf(n.X).Underlying().(*types.Chan); channel && !contains(c.Node(), n) {
				found = true
			}
		}
		return !found
	})
	return found
}

// givesAway reports whether an argument of a call is something that one can wait on.
func (s *service) givesAway(call *ast.CallExpr) bool {
	if _, builtin := s.object(call.Fun).(*types.Builtin); builtin {
		return false
	}
	for _, argument := range call.Args {
		t := s.info.TypeOf(argument)
		if t == nil || s.info.Types[argument].IsType() {
			continue
		}
		_, channel := t.Underlying().(*types.Chan)
		name := typeName(t)
		if channel || name == "sync.WaitGroup" || name == "golang.org/x/sync/errgroup.Group" {
			return true
		}
	}
	return false
}

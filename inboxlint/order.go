package inboxlint

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/inspector"
)

var orderAnalyzer = newAnalyzer("inboxorder",
	"find middlewares of Watermill on the wrong side of Inbox\n\n"+
		"Retry inside runs the handler again in the transaction in which it failed. PoisonQueue and IgnoreErrors inside\n"+
		"make a failure a success, Duplicator runs the handler twice in one transaction, InstantAck anywhere acks what may be\n"+
		"rolled back, and Deduplicator what has failed.",
	"router.md#order", checkOrder)

// Kinds of middlewares, by the functions and methods that are one or make one.
const (
	isInbox       = "Inbox"
	isDeduplicate = "Deduplicate"
)

var kinds = map[string]string{
	middleware + ".Inbox.Middleware":       isInbox,
	middleware + ".Inbox.AddTo":            isInbox,
	middleware + ".Deduplicate.Middleware": isDeduplicate,
	wmmw + ".Retry.Middleware":             "Retry",
	wmmw + ".IgnoreErrors.Middleware":      "IgnoreErrors",
	wmmw + ".PoisonQueue":                  "PoisonQueue",
	wmmw + ".PoisonQueueWithFilter":        "PoisonQueue",
	wmmw + ".Duplicator":                   "Duplicator",
	wmmw + ".InstantAck":                   "InstantAck",
	wmmw + ".Deduplicator.Middleware":      "Deduplicator",
}

// reasons says what is wrong inside of Inbox, and nowhere what is wrong on either side of it.
var reasons = map[string]string{
	"Retry":        "its second run is in the transaction of the run that failed, and is refused or commits both: put it outside",
	"IgnoreErrors": "a failed run looks like a success, and half of its work would be committed: put it outside",
	"PoisonQueue":  "a failed run looks like a success, and half of its work would be committed: put it outside",
	"Duplicator":   "its second run is in the transaction of the first, and is refused: put it outside",
}

var nowhere = map[string]string{
	"InstantAck":   "it acks a message before its transaction is committed, and a failure loses the message",
	"Deduplicator": "it drops the redelivery of a message that failed, which loses the message: remove it",
}

var addsHandler = methods(message+".Router", "AddHandler", "AddConsumerHandler", "AddNoPublisherHandler")

// added is a middleware that a function adds to a router, or to one handler of it.
type added struct {
	kind        string
	arg         ast.Expr
	at          inspector.Cursor // the call
	router      target
	handler     *types.Var // nil for all of them
	withoutSkip bool
}

// target is a variable, or a field of one.
type target struct{ root, field *types.Var }

func checkOrder(f *findings) {
	for c := range f.syntax.Preorder((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		f.checkFunction(f.addedIn(c))
	}
	for _, call := range calls(f.syntax) {
		if f.called(call) == middleware+".Inbox.Middleware" && len(call.Args) == 1 {
			f.checkNested(call.Args[0])
		}
	}
}

func (f *findings) checkFunction(all []added) {
	for i, one := range all {
		if one.kind != isInbox {
			continue
		}
		for j, other := range all {
			if one.router != other.router || one.handler != nil && other.handler != nil && one.handler != other.handler {
				continue
			}
			switch {
			case nowhere[other.kind] != "" && together(one.at, other.at):
				f.beside(other.kind, other.arg)
			case j > i && reasons[other.kind] != "" && together(one.at, other.at):
				f.add(other.arg, "%s is inside of Inbox, since it is added later: %s", other.kind, reasons[other.kind])
			}
		}
	}
}

// checkNested looks at what Inbox wraps: Inbox.Middleware(retry.Middleware(h)).
func (f *findings) checkNested(inner ast.Expr) {
	call, ok := ast.Unparen(inner).(*ast.CallExpr)
	if !ok {
		return
	}
	switch kind := f.kindOf(call.Fun); {
	case nowhere[kind] != "":
		f.beside(kind, call.Fun)
	case reasons[kind] != "":
		f.add(call.Fun, "%s is inside of Inbox: %s", kind, reasons[kind])
	}
	for _, argument := range call.Args {
		f.checkNested(argument)
	}
}

func (f *findings) beside(kind string, at ast.Node) {
	f.add(at, "%s beside Inbox: %s", kind, nowhere[kind])
}

// together reports whether two statements of a function run in the same run of it: neither is in a branch that the
// other is not in, unless that branch goes on to the other.
func together(a, b inspector.Cursor) bool {
	if b.Node().Pos() < a.Node().Pos() {
		a, b = b, a
	}
	for block := range a.Parent().Enclosing((*ast.BlockStmt)(nil), (*ast.CaseClause)(nil), (*ast.CommClause)(nil)) {
		if block.Contains(b) {
			return true
		}
		if list := statements(block.Node()); len(list) > 0 {
			if _, leaves := list[len(list)-1].(*ast.ReturnStmt); leaves {
				return false
			}
		}
		if branch, ok := block.Parent().Node().(*ast.IfStmt); ok && branch.Else != nil && contains(branch.Else, b.Node()) {
			return false
		}
		if _, ok := block.Node().(*ast.BlockStmt); !ok && contains(block.Parent().Node(), b.Node()) {
			return false // two cases of a switch
		}
	}
	return false
}

func contains(around, n ast.Node) bool { return around.Pos() <= n.Pos() && n.End() <= around.End() }

func statements(n ast.Node) []ast.Stmt {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return n.List
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}

// addedIn returns what a function adds to routers, in the order in which it does.
func (s *service) addedIn(around inspector.Cursor) (all []added) {
	for c, call := range calls(around) {
		if in, ok := function(c); !ok || in != around {
			continue
		}
		receiver := s.receiver(call)
		switch s.called(call) {
		case middleware + ".Inbox.AddTo":
			if len(call.Args) == 1 {
				if router, ok := s.targetOf(call.Args[0]); ok {
					all = append(all, added{isInbox, call, c, router, nil, s.withoutSkip(receiver)})
				}
			}
		case message + ".Router.AddMiddleware":
			if router, ok := s.targetOf(receiver); ok {
				all = append(all, s.addedBy(c, call, router, nil)...)
			}
		case message + ".Handler.AddMiddleware":
			if router, handler, ok := s.handlerOf(receiver); ok {
				all = append(all, s.addedBy(c, call, router, handler)...)
			}
		}
	}
	return all
}

func (s *service) addedBy(c inspector.Cursor, call *ast.CallExpr, router target, handler *types.Var) (all []added) {
	for _, arg := range call.Args {
		if kind := s.kindOf(arg); kind != "" {
			selector, _ := ast.Unparen(arg).(*ast.SelectorExpr)
			all = append(all, added{kind, arg, c, router, handler, selector != nil && s.withoutSkip(selector.X)})
		}
	}
	return all
}

// kindOf returns which middleware an expression is, if that is known.
func (s *service) kindOf(e ast.Expr) string {
	var found []string
	for _, v := range s.valuesOf(e) {
		kind := ""
		if call, ok := v.expr.(*ast.CallExpr); ok {
			kind = kinds[s.called(call)]
		} else if fn, ok := s.object(v.expr).(*types.Func); ok {
			kind = kinds[nameOf(fn)]
		}
		found = append(found, kind)
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) != 1 {
		return ""
	}
	return found[0]
}

// targetOf returns the variable that holds a router, if it holds no more than one.
func (s *service) targetOf(e ast.Expr) (target, bool) {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v := s.variable(e)
		return target{v, nil}, v != nil && len(s.values[v]) < 2
	case *ast.SelectorExpr:
		base, ok := ast.Unparen(e.X).(*ast.Ident)
		if !ok {
			return target{}, false
		}
		v, field := s.variable(base), s.variable(e)
		return target{v, field}, v != nil && field != nil && len(s.values[v]) < 2 && len(s.values[field]) < 2
	}
	return target{}, false
}

// handlerOf returns the router and the variable of a handler that was added in this package.
func (s *service) handlerOf(e ast.Expr) (target, *types.Var, bool) {
	values := s.valuesOf(e)
	if len(values) != 1 {
		return target{}, nil, false
	}
	call, ok := values[0].expr.(*ast.CallExpr)
	if !ok || !addsHandler[s.called(call)] {
		return target{}, nil, false
	}
	router, ok := s.targetOf(s.receiver(call))
	handler := s.variable(e)
	if handler == nil {
		handler = types.NewVar(call.Pos(), s.pkg, "", nil) // used at once
	}
	return router, handler, ok
}

// routerHas reports whether the router, to which a call adds a handler, certainly has a middleware for all messages.
func (s *service) routerHas(c inspector.Cursor, call *ast.CallExpr, kind string) bool {
	around, ok := function(c)
	if !ok {
		return false
	}
	router, ok := s.targetOf(s.receiver(call))
	if !ok {
		return false
	}
	return slices.ContainsFunc(s.addedIn(around), func(a added) bool {
		return a.kind == kind && a.router == router && a.handler == nil && a.withoutSkip && block(a.at).Contains(c)
	})
}

// block returns the innermost block around c.
func block(c inspector.Cursor) inspector.Cursor {
	for around := range c.Parent().Enclosing((*ast.BlockStmt)(nil), (*ast.CaseClause)(nil), (*ast.CommClause)(nil)) {
		return around
	}
	return c
}

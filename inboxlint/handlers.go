package inboxlint

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// findOwned finds the parameters that are a transaction which somebody else ends.
func (s *service) findOwned() {
	for c := range s.syntax.Preorder((*ast.FuncLit)(nil)) {
		literal := c.Node().(*ast.FuncLit)
		switch parent := c.Parent().Node().(type) {
		case *ast.CallExpr:
			if s.called(parent) != outbox+".InTx" {
				continue
			}
		case *ast.KeyValueExpr:
			field := s.variable(parent.Key)
			if field == nil || field.Name() != "OnBegin" || field.Pkg() == nil || pathOf(field.Pkg()) != inbox {
				continue
			}
		default:
			continue
		}
		var parameters []*ast.Ident
		for _, list := range literal.Type.Params.List {
			parameters = append(parameters, list.Names...)
		}
		if len(parameters) > 1 {
			if tx := s.variable(parameters[1]); tx != nil {
				s.owned[tx] = true
			}
		}
	}
}

func (s *service) findHandlers() {
	add := func(to *[]inspector.Cursor, function inspector.Cursor) {
		if !slices.Contains(*to, function) {
			*to = append(*to, function)
		}
	}
	for c, call := range calls(s.syntax) {
		switch name := s.called(call); {
		case s.takes(call):
			if function, ok := function(c); ok && s.needsTx(c, function) {
				add(&s.handlers, function)
			}
		case name == middleware+".Inbox.Middleware", name == middleware+".Batch.Handler", name == middleware+".Batch.ConsumerHandler":
			if handler, ok := s.functionOf(call.Args); ok && s.withoutSkip(s.receiver(call)) {
				add(&s.handlers, handler)
			}
		case name == middleware+".Deduplicate.Middleware":
			if handler, ok := s.functionOf(call.Args); ok && s.withoutSkip(s.receiver(call)) {
				add(&s.repeated, handler)
			}
		case addsHandler[name]:
			handler, ok := s.functionOf(call.Args)
			if !ok {
				continue
			}
			if s.routerHas(c, call, isInbox) {
				add(&s.handlers, handler)
			}
			if s.routerHas(c, call, isDeduplicate) {
				add(&s.repeated, handler)
			}
		}
	}
}

// needsTx reports whether a function cannot go on if a call in it, which takes the transaction, fails.
func (s *service) needsTx(c, function inspector.Cursor) bool {
	for c := range function.Preorder((*ast.Ident)(nil)) {
		if o := s.info.Uses[c.Node().(*ast.Ident)]; o != nil && o.Pkg() != nil && o.Name() == "ErrNoTx" && (pathOf(o.Pkg()) == inbox || pathOf(o.Pkg()) == outbox) {
			return false // it has something to do without one
		}
	}
	for c.ParentEdgeKind() == edge.ParenExpr_X {
		c = c.Parent()
	}
	assignment, ok := c.Parent().Node().(*ast.AssignStmt)
	if !ok {
		_, argument := c.Parent().Node().(*ast.CallExpr) // must(inbox.Tx(ctx))
		return argument
	}
	if len(assignment.Lhs) != 2 {
		return false
	}
	failure := s.variable(assignment.Lhs[1])
	if failure == nil {
		return true // tx, _ := inbox.Tx(ctx)
	}
	if around, ok := c.Parent().Parent().Node().(*ast.IfStmt); ok && around.Init == assignment {
		return s.leaves(around, failure)
	}
	next, ok := c.Parent().NextSibling()
	if !ok {
		return false
	}
	branch, ok := next.Node().(*ast.IfStmt)
	if !ok {
		return s.mentions(next.Node(), failure) // check(err), require.NoError(t, err)
	}
	return s.leaves(branch, failure)
}

// leaves reports whether a branch is taken where err is not nil, and leaves the function with err.
func (s *service) leaves(branch *ast.IfStmt, err *types.Var) bool {
	if !s.isFailure(branch.Cond, err) || len(branch.Body.List) == 0 {
		return false
	}
	switch last := branch.Body.List[len(branch.Body.List)-1].(type) {
	case *ast.ReturnStmt:
		return s.mentions(last, err) || len(last.Results) == 0 && s.unknown[err] // a named result
	case *ast.ExprStmt: // panic(err), log.Fatal(err)
		return s.mentions(last, err)
	}
	return false
}

// mentions reports whether a variable is used below a node.
func (s *service) mentions(n ast.Node, v *types.Var) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if identifier, ok := n.(*ast.Ident); ok && s.variable(identifier) == v {
			found = true
		}
		return !found
	})
	return found
}

// functionOf returns the function of this package that is the last of some arguments.
func (s *service) functionOf(arguments []ast.Expr) (inspector.Cursor, bool) {
	if len(arguments) == 0 {
		return s.syntax, false
	}
	return s.functionFor(arguments[len(arguments)-1])
}

func (s *service) functionFor(e ast.Expr) (inspector.Cursor, bool) {
	values := s.valuesOf(e)
	if len(values) != 1 {
		return s.syntax, false
	}
	e = ast.Unparen(values[0].expr)
	switch instance := e.(type) { // of a generic function
	case *ast.IndexExpr:
		e = instance.X
	case *ast.IndexListExpr:
		e = instance.X
	}
	if literal, ok := e.(*ast.FuncLit); ok {
		return s.syntax.FindNode(literal)
	}
	if fn, ok := s.object(e).(*types.Func); ok && s.decls[fn.Origin()] != nil {
		return s.syntax.FindNode(s.decls[fn.Origin()])
	}
	return s.syntax, false
}

// withoutSkip reports whether an Inbox, a Batch or a Deduplicate is a literal of this package, and handles all messages.
func (s *service) withoutSkip(e ast.Expr) bool {
	for field := range s.values {
		if field.IsField() && field.Name() == "Skip" && field.Pkg() != nil && pathOf(field.Pkg()) == middleware {
			return false
		}
	}
	return e != nil && all(s.valuesOf(e), func(v value) bool {
		_, ok := v.expr.(*ast.CompositeLit)
		return ok
	})
}

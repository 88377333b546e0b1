package inboxlint

import (
	"go/ast"
	"go/token"
	"go/types"
	"iter"
	"reflect"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// serviceAnalyzer reads a package once for all other analyzers. Its result is nil for one without Millrace.
var serviceAnalyzer = &analysis.Analyzer{
	Name: "inboxservice", Doc: "find the handlers of a package and what its variables can be",
	Requires: []*analysis.Analyzer{inspect.Analyzer}, ResultType: reflect.TypeFor[*service](),
	Run: func(pass *analysis.Pass) (any, error) { return newService(pass), nil },
}

// service is what the analyzers know of a package.
type service struct {
	info   *types.Info
	pkg    *types.Package
	fset   *token.FileSet
	syntax inspector.Cursor

	ignored map[place]bool
	decls   map[*types.Func]*ast.FuncDecl
	values  map[*types.Var][]value // what is assigned to a variable or field
	unknown map[*types.Var]bool    // what else can be assigned cannot be seen
	owned   map[*types.Var]bool    // parameters that are the transaction of somebody else

	handlers []inspector.Cursor // functions that handle a message in the transaction of an inbox
	repeated []inspector.Cursor // functions that handle a message behind Deduplicate
}

func newService(pass *analysis.Pass) *service {
	if !usesMillrace(pass.Pkg) {
		return nil
	}
	s := &service{
		info: pass.TypesInfo, pkg: pass.Pkg, fset: pass.Fset, syntax: pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root(),
		ignored: ignoredLines(pass), decls: map[*types.Func]*ast.FuncDecl{},
		values: map[*types.Var][]value{}, unknown: map[*types.Var]bool{}, owned: map[*types.Var]bool{},
	}
	for c := range s.syntax.Preorder() {
		s.record(c.Node())
		if declaration, ok := c.Node().(*ast.FuncDecl); ok {
			if fn, ok := s.info.Defs[declaration.Name].(*types.Func); ok {
				s.decls[fn] = declaration
			}
		}
	}
	s.findOwned()
	s.findHandlers()
	return s
}

func usesMillrace(pkg *types.Package) bool {
	for _, imported := range pkg.Imports() {
		if path := pathOf(imported); path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

// calls returns all calls below c, each with its cursor.
func calls(c inspector.Cursor) iter.Seq2[inspector.Cursor, *ast.CallExpr] {
	return func(yield func(inspector.Cursor, *ast.CallExpr) bool) {
		for c := range c.Preorder((*ast.CallExpr)(nil)) {
			if !yield(c, c.Node().(*ast.CallExpr)) {
				return
			}
		}
	}
}

// handled returns the calls that run while a message is handled by one of the functions, each once.
func (s *service) handled(functions []inspector.Cursor) iter.Seq2[inspector.Cursor, *ast.CallExpr] {
	return func(yield func(inspector.Cursor, *ast.CallExpr) bool) {
		seen, going := map[*ast.CallExpr]bool{}, true
		for _, function := range functions {
			function.Inspect([]ast.Node{(*ast.CallExpr)(nil), (*ast.FuncLit)(nil)}, func(c inspector.Cursor) bool {
				switch n := c.Node().(type) {
				case *ast.FuncLit:
					return going && (c == function || s.runsThere(c))
				case *ast.CallExpr:
					if going && !seen[n] {
						seen[n] = true
						going = yield(c, n)
					}
				}
				return going
			})
		}
	}
}

// callers run a function that they are given before the one that called them returns, or start it.
var callers = union(
	set(outbox+".InTx", pgx+".BeginFunc", pgx+".BeginTxFunc"),
	methods("golang.org/x/sync/errgroup.Group", "Go", "TryGo"), methods("sync.WaitGroup", "Go"),
)

// runsThere reports whether a function literal runs in the function around it for certain: it is called, deferred or
// started there.
func (s *service) runsThere(literal inspector.Cursor) bool {
	call, ok := literal.Parent().Node().(*ast.CallExpr)
	if !ok {
		return false
	}
	return literal.ParentEdgeKind() == edge.CallExpr_Fun || callers[s.called(call)]
}

// function returns the innermost function around c.
func function(c inspector.Cursor) (inspector.Cursor, bool) {
	for around := range c.Parent().Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		return around, true
	}
	return c, false
}

func bodyOf(function ast.Node) *ast.BlockStmt {
	switch f := function.(type) {
	case *ast.FuncDecl:
		return f.Body
	case *ast.FuncLit:
		return f.Body
	}
	return nil
}

// isTx reports whether an expression is the transaction of a handler, and nothing else.
func (s *service) isTx(e ast.Expr) bool {
	switch typeName(s.info.TypeOf(e)) {
	case sqlx + ".Tx", "database/sql.Tx", pgx + ".Tx":
	default:
		return false
	}
	return all(s.valuesOf(e), func(v value) bool {
		if call, ok := v.expr.(*ast.CallExpr); ok {
			return takers[s.called(call)]
		}
		variable := s.variable(v.expr)
		return variable != nil && s.owned[variable]
	})
}

// takes reports whether a call returns the transaction of a handler.
func (s *service) takes(call *ast.CallExpr) bool {
	return all(s.valuesOf(call), func(v value) bool {
		taken, ok := v.expr.(*ast.CallExpr)
		return ok && takers[s.called(taken)]
	})
}

// receiver returns what a method is called on, and nil for other calls.
func (s *service) receiver(call *ast.CallExpr) ast.Expr {
	selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || s.info.Selections[selector] == nil {
		return nil
	}
	return selector.X
}

// onTx reports whether a call is a method of the transaction of a handler.
func (s *service) onTx(call *ast.CallExpr) bool {
	receiver := s.receiver(call)
	return receiver != nil && s.isTx(receiver)
}

package inboxlint

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// value is an expression or, if result is not negative, one result of a call.
type value struct {
	expr   ast.Expr
	result int
}

// typeOf returns the type of a value.
func (s *service) typeOf(v value) types.Type {
	t := s.info.TypeOf(v.expr)
	if tuple, ok := t.(*types.Tuple); ok && v.result >= 0 && v.result < tuple.Len() {
		return tuple.At(v.result).Type()
	}
	return t
}

// valuesOf returns all that e can be, as far as variables and fields of this package tell; nothing if they do not tell all.
// In a file that is no test, what tests assign does not count.
func (s *service) valuesOf(e ast.Expr) []value {
	found, known := s.trace(value{e, -1}, s.isTest(e.Pos()), map[types.Object]bool{})
	if !known {
		return nil
	}
	return found
}

func (s *service) trace(v value, test bool, seen map[types.Object]bool) (found []value, known bool) {
	switch e := ast.Unparen(v.expr).(type) {
	case *ast.CallExpr:
		if s.info.Types[e.Fun].IsType() && len(e.Args) == 1 {
			return s.trace(value{e.Args[0], -1}, test, seen)
		}
		if fn, returned := s.onlyReturns(e); returned != nil && !seen[fn] {
			seen[fn] = true
			if found, known := s.trace(value{returned, v.result}, test, seen); known {
				return found, true
			}
		}
		return []value{{e, v.result}}, true
	case *ast.Ident, *ast.SelectorExpr:
		if selector, ok := e.(*ast.SelectorExpr); ok && selector.Sel.Name == "Tx" && typeName(s.info.TypeOf(selector.X)) == sqlx+".Tx" {
			return s.trace(value{selector.X, -1}, test, seen) // its *sql.Tx
		}
		if s.info.Types[e].IsNil() {
			return nil, true
		}
		return s.traceVariable(e, test, seen)
	default:
		return []value{{e, v.result}}, true
	}
}

// traceVariable is trace for the name of a variable or a field, or of something else.
func (s *service) traceVariable(e ast.Expr, test bool, seen map[types.Object]bool) (found []value, known bool) {
	variable := s.variable(e)
	switch {
	case variable == nil: // a constant or a function
		return []value{{e, -1}}, true
	case s.owned[variable]:
		return []value{{e, -1}}, true
	case seen[variable]:
		return nil, true
	case !s.visible(variable):
		return nil, false
	}
	seen[variable] = true
	for _, assigned := range s.values[variable] {
		if !test && s.isTest(assigned.expr.Pos()) {
			continue
		}
		more, known := s.trace(assigned, test, seen)
		if !known {
			return nil, false
		}
		found = append(found, more...)
	}
	return found, true
}

// onlyReturns returns what a function of this package returns, if that is all that it does: return inbox.Tx(ctx).
func (s *service) onlyReturns(call *ast.CallExpr) (*types.Func, ast.Expr) {
	fn, _ := typeutil.Callee(s.info, call).(*types.Func)
	declaration := s.decls[fn]
	if declaration == nil || declaration.Body == nil || len(declaration.Body.List) != 1 {
		return nil, nil
	}
	returned, ok := declaration.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(returned.Results) != 1 {
		return nil, nil
	}
	return fn, returned.Results[0]
}

// all reports whether there are values and each is as asked for.
func all(values []value, is func(value) bool) bool {
	return len(values) > 0 && !slices.ContainsFunc(values, func(v value) bool { return !is(v) })
}

// visible reports whether all that is assigned to a variable or field can be seen in the package.
func (s *service) visible(v *types.Var) bool {
	switch {
	case s.unknown[v] || v.Pkg() != s.pkg:
		return false
	case v.IsField() || v.Parent() == s.pkg.Scope():
		return !v.Exported() || s.pkg.Name() == "main"
	}
	return true
}

// variable returns the variable or field that an expression names, if it does.
func (s *service) variable(e ast.Expr) *types.Var {
	v, _ := s.object(e).(*types.Var)
	if v == nil {
		return nil
	}
	return v.Origin()
}

// object returns what an identifier or a selector names.
func (s *service) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return s.info.ObjectOf(e)
	case *ast.SelectorExpr:
		return s.info.ObjectOf(e.Sel)
	}
	return nil
}

func (s *service) isTest(at token.Pos) bool {
	return strings.HasSuffix(s.fset.File(at).Name(), "_test.go")
}

// record keeps what a node assigns.
func (s *service) record(n ast.Node) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		s.recordAssignment(n)
	case *ast.ValueSpec:
		for i, name := range n.Names {
			switch {
			case len(n.Values) == len(n.Names):
				s.assign(name, value{n.Values[i], -1})
			case len(n.Values) > 0:
				s.assign(name, value{n.Values[0], i})
			}
		}
	case *ast.RangeStmt:
		s.forget(n.Key)
		s.forget(n.Value)
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			s.forget(n.X)
		}
	case *ast.FuncType:
		for _, list := range []*ast.FieldList{n.TypeParams, n.Params, n.Results} {
			s.forgetFields(list)
		}
	case *ast.FuncDecl:
		s.forgetFields(n.Recv)
	case *ast.CompositeLit:
		s.recordLiteral(n)
	}
}

func (s *service) recordAssignment(n *ast.AssignStmt) {
	for i, left := range n.Lhs {
		switch {
		case n.Tok != token.ASSIGN && n.Tok != token.DEFINE:
			s.forget(left)
		case len(n.Lhs) == len(n.Rhs):
			s.assign(left, value{n.Rhs[i], -1})
		default:
			s.assign(left, value{n.Rhs[0], i})
		}
	}
}

func (s *service) recordLiteral(n *ast.CompositeLit) {
	t := s.info.TypeOf(n)
	if t == nil {
		return
	}
	if pointer, ok := t.Underlying().(*types.Pointer); ok { // &T is left out in a list of them
		t = pointer.Elem()
	}
	structure, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, element := range n.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			s.assign(pair.Key, value{pair.Value, -1})
		} else if i < structure.NumFields() {
			s.values[structure.Field(i).Origin()] = append(s.values[structure.Field(i).Origin()], value{element, -1})
		}
	}
}

func (s *service) assign(to ast.Expr, v value) {
	if variable := s.variable(to); variable != nil {
		s.values[variable] = append(s.values[variable], v)
	}
}

// forget says that a variable can have values that nobody sees here.
func (s *service) forget(e ast.Expr) {
	if e == nil {
		return
	}
	if variable := s.variable(e); variable != nil {
		s.unknown[variable] = true
	}
}

func (s *service) forgetFields(list *ast.FieldList) {
	if list == nil {
		return
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			s.forget(name)
		}
	}
}

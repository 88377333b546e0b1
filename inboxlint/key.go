package inboxlint

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

var keyAnalyzer = newAnalyzer("inboxkey",
	"find keys that are made of the time or at random, and so are others in each run\n\n"+
		"Reported are keys of inbox.ByFunc, parts of inbox.ID, names of steps, the Idempotency-Key of a handler's request, and\n"+
		"UUIDs of messages that a handler behind Deduplicate makes. What a handler behind Inbox makes for its rows and its\n"+
		"messages is right: it is stored once.",
	"pitfalls.md#a-key-made-in-the-consumer", checkKeys)

func checkKeys(f *findings) {
	for _, call := range calls(f.syntax) {
		switch name := f.called(call); {
		case name == inbox+".ByFunc":
			if key, ok := f.functionOf(call.Args); ok {
				f.checkReturned(key)
			}
		case stable[name] && len(call.Args) > 1:
			for _, part := range call.Args[1:] {
				f.checkKey(part, "is in each run another id: the other side takes the second run's call for a new one")
			}
		}
	}
	f.checkIdempotencyKeys()
	for _, call := range f.handled(f.repeated) {
		if at := uuidOf[f.called(call)]; at > 0 && len(call.Args) >= at {
			f.checkKey(call.Args[at-1], "gives the message another UUID in each run: consumers cannot recognise the second one; use inbox.ID")
		}
	}
}

// stable are functions whose arguments, but for the first, must be the same in each run.
var stable = set(inbox+".ID", inbox+".WithStep", inbox+".Once")

// uuidOf says which argument is the UUID, counted from 1.
var uuidOf = map[string]int{message + ".NewMessage": 1, message + ".NewMessageWithContext": 2}

func (f *findings) checkKey(e ast.Expr, problem string) {
	if made := f.fresh(e); made != nil {
		f.add(made, "%s %s", f.source(e), problem)
	}
}

// source names what makes a value, for messages.
func (s *service) source(e ast.Expr) string {
	if call, ok := s.fresh(e).(*ast.CallExpr); ok {
		switch fun := ast.Unparen(call.Fun).(type) {
		case *ast.Ident:
			return fun.Name
		case *ast.SelectorExpr:
			if base, ok := fun.X.(*ast.Ident); ok {
				return base.Name + "." + fun.Sel.Name
			}
		}
	}
	return "a value made here"
}

// checkReturned looks at the first result of a function.
func (f *findings) checkReturned(function inspector.Cursor) {
	function.Inspect([]ast.Node{(*ast.FuncLit)(nil), (*ast.ReturnStmt)(nil)}, func(c inspector.Cursor) bool {
		switch n := c.Node().(type) {
		case *ast.FuncLit:
			return c == function
		case *ast.ReturnStmt:
			if len(n.Results) > 0 {
				f.checkKey(n.Results[0], "makes another key for each delivery of a message: no delivery is recognised")
			}
		}
		return true
	})
}

const anotherKey = "is in each run another idempotency key: the other side takes the second run's call for a new one; use inbox.ID"

// checkIdempotencyKeys looks for idempotency keys that go out: of a handler in the header of a request, of a step in any way.
// What else a handler makes may be stored in its transaction, once.
func (f *findings) checkIdempotencyKeys() {
	for function := range f.syntax.Preorder((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		step := f.isStep(function)
		if !step && !f.handlesMessage(function) {
			continue
		}
		for c := range function.Preorder((*ast.CallExpr)(nil), (*ast.AssignStmt)(nil), (*ast.KeyValueExpr)(nil)) {
			switch n := c.Node().(type) {
			case *ast.CallExpr:
				if setsHeader[f.called(n)] || step {
					f.checkArguments(n)
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					if selector, ok := left.(*ast.SelectorExpr); ok && step && len(n.Lhs) == len(n.Rhs) && isIdempotency(selector.Sel.Name) {
						f.checkKey(n.Rhs[i], anotherKey)
					}
				}
			case *ast.KeyValueExpr:
				if name, ok := n.Key.(*ast.Ident); step && (ok && isIdempotency(name.Name) || isIdempotency(f.text(n.Key))) {
					f.checkKey(n.Value, anotherKey)
				}
			}
		}
	}
}

var setsHeader = methods("net/http.Header", "Set", "Add")

// checkArguments looks at SetIdempotencyKey(key) and Set("Idempotency-Key", key).
func (f *findings) checkArguments(call *ast.CallExpr) {
	selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	switch {
	case !ok:
	case isIdempotency(selector.Sel.Name) && len(call.Args) > 0:
		f.checkKey(call.Args[len(call.Args)-1], anotherKey)
	case len(call.Args) == 2 && isIdempotency(f.text(call.Args[0])):
		f.checkKey(call.Args[1], anotherKey)
	}
}

func isIdempotency(name string) bool { return strings.Contains(strings.ToLower(name), "idempoten") }

// text returns the text of a constant.
func (s *service) text(e ast.Expr) string {
	if v := s.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	return ""
}

// handlesMessage reports whether a function runs again for the same message: it takes the transaction, or has the
// signature of a handler.
func (s *service) handlesMessage(function inspector.Cursor) bool {
	if slices.Contains(s.handlers, function) {
		return true
	}
	signature, ok := s.signatureOf(function.Node())
	if !ok || signature.Params().Len() != 1 || typeName(signature.Params().At(0).Type()) != message+".Message" {
		return false
	}
	results := signature.Results()
	return results.Len() > 0 && isError(results.At(results.Len()-1).Type())
}

// isStep reports whether a function is the Do of an inbox.Step, or given to inbox.Once.
func (s *service) isStep(function inspector.Cursor) bool {
	switch parent := function.Parent().Node().(type) {
	case *ast.KeyValueExpr:
		field := s.variable(parent.Key)
		return field != nil && field.IsField() && field.Name() == "Do" && field.Pkg() != nil && pathOf(field.Pkg()) == inbox
	case *ast.CallExpr:
		return s.called(parent) == inbox+".Once"
	}
	return false
}

// fresh returns the call of which e is made, if that returns something else each time.
func (s *service) fresh(e ast.Expr) ast.Node { return s.freshIn(e, map[types.Object]bool{}) }

func (s *service) freshIn(e ast.Expr, seen map[types.Object]bool) (made ast.Node) {
	ast.Inspect(e, func(n ast.Node) bool {
		if made != nil {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			name := s.called(n)
			if isVolatile(name) {
				made = n
			} else if fn, returned := s.onlyReturns(n); returned != nil && !seen[fn] {
				seen[fn] = true
				if s.freshIn(returned, seen) != nil {
					made = n
				}
			}
			return made == nil && !coarse[name]
		case *ast.SelectorExpr:
			if field := s.variable(n); field != nil && field.IsField() {
				made = s.freshField(n, field, seen)
				return false
			}
			return !s.isRecord(n.X)
		case *ast.Ident:
			v := s.variable(n)
			if v == nil || v.IsField() || seen[v] {
				return true
			}
			seen[v] = true
			var first ast.Node
			if all(s.valuesOf(n), func(v value) bool {
				at := s.freshIn(v.expr, seen)
				if first == nil {
					first = at
				}
				return at != nil
			}) {
				made = first
			}
		}
		return made == nil
	})
	return made
}

// freshField returns what makes a field, if that returns something else each time: of what a record has in other fields
// nothing is said, and of a record that is no literal nothing is known.
func (s *service) freshField(e *ast.SelectorExpr, field *types.Var, seen map[types.Object]bool) (made ast.Node) {
	records := s.valuesOf(e.X)
	if !all(records, isLiteral) || seen[field] {
		return nil
	}
	seen[field] = true
	here := false // made is in one of these records
	if !all(s.values[field], func(v value) bool {
		at := s.freshIn(v.expr, seen)
		if at != nil && !here {
			here = slices.ContainsFunc(records, func(r value) bool { return contains(r.expr, at) })
			if here || made == nil {
				made = at
			}
		}
		return at != nil
	}) {
		return nil
	}
	return made
}

// isLiteral reports whether a value is T{…} or &T{…}.
func isLiteral(v value) bool {
	e := ast.Unparen(v.expr)
	if address, ok := e.(*ast.UnaryExpr); ok && address.Op == token.AND {
		e = ast.Unparen(address.X)
	}
	_, ok := e.(*ast.CompositeLit)
	return ok
}

// isRecord reports whether e is a struct, a method of which may return what is the same each time. A time.Time is none.
func (s *service) isRecord(e ast.Expr) bool {
	t := s.info.TypeOf(e)
	if t == nil || typeName(t) == "time.Time" || typeName(t) == "math/big.Int" {
		return false
	}
	if pointer, ok := t.Underlying().(*types.Pointer); ok {
		t = pointer.Elem()
	}
	_, ok := t.Underlying().(*types.Struct)
	return ok
}

// coarse are methods that make a period of a time: a key for each day can be meant.
var coarse = methods("time.Time", "Format", "AppendFormat", "Truncate", "Round", "Date", "Year", "Month", "Day", "YearDay", "Weekday", "ISOWeek", "Hour", "Minute")

// isVolatile reports whether a function returns something else each time.
func isVolatile(name string) bool {
	if volatile[name] {
		return true
	}
	for _, path := range []string{"math/rand.", "math/rand/v2."} {
		if rest, ok := strings.CutPrefix(name, path); ok {
			return strings.HasPrefix(rest, "Int") || strings.HasPrefix(rest, "Uint") || strings.HasPrefix(rest, "Float") || rest == "N"
		}
	}
	return false
}

var volatile = union(
	set("time.Now", "crypto/rand.Text", "crypto/rand.Int"),
	methods(watermill, "NewUUID", "NewShortUUID", "NewULID"),
	methods("github.com/google/uuid", "New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"),
	methods("github.com/gofrs/uuid", "NewV1", "NewV4", "NewV6", "NewV7"),
	methods("github.com/gofrs/uuid/v5", "NewV1", "NewV4", "NewV6", "NewV7"),
	methods("github.com/lithammer/shortuuid/v3", "New"), methods("github.com/lithammer/shortuuid/v4", "New"),
	methods("github.com/oklog/ulid/v2", "Make"), methods("github.com/rs/xid", "New"), methods("github.com/segmentio/ksuid", "New"),
)

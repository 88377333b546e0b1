package inboxlint

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

var errorAnalyzer = newAnalyzer("inboxerror",
	"find statements of a handler's transaction whose error is dropped\n\n"+
		"PostgreSQL refuses the commit then, and the other databases commit the rest of the handler's work. A function with a\n"+
		"SAVEPOINT is not reported.",
	"pitfalls.md#swallowed-sql-errors", checkErrors)

func checkErrors(f *findings) {
	const reason = "PostgreSQL refuses the commit after it, other databases commit the rest; return it, or set a savepoint"
	for c, call := range calls(f.syntax) {
		around, ok := function(c)
		if !ok || !f.isStatement(call) || f.hasSavepoint(around) {
			continue
		}
		if f.drops(c) {
			f.add(call, "the error of a statement is dropped: %s", reason)
		} else if branch := f.passesOver(c, around); branch != nil {
			f.add(branch, "the error of a statement ends in a success: %s", reason)
		}
	}
}

var scans = set("database/sql.Row.Scan", sqlx+".Row.StructScan", sqlx+".Row.Scan", pgx+".Row.Scan")

// isStatement reports whether a call is a statement of the transaction that returns an error: tx.Exec, tx.QueryRow().Scan.
func (s *service) isStatement(call *ast.CallExpr) bool {
	signature, ok := s.info.TypeOf(call.Fun).(*types.Signature)
	if !ok || signature.Results().Len() == 0 || !isError(signature.Results().At(signature.Results().Len()-1).Type()) {
		return false
	}
	name := s.called(call)
	if scans[name] {
		row, ok := ast.Unparen(s.receiver(call)).(*ast.CallExpr)
		return ok && s.onTx(row)
	}
	return s.onTx(call) && !ends[name] && name != pgx+".Tx.Begin"
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// drops reports whether nothing gets the error of a call.
func (s *service) drops(c inspector.Cursor) bool {
	switch parent := c.Parent().Node().(type) {
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt:
		return true
	case *ast.AssignStmt:
		last, ok := parent.Lhs[len(parent.Lhs)-1].(*ast.Ident)
		return ok && len(parent.Rhs) == 1 && last.Name == "_"
	}
	return false
}

// passesOver returns the branch in which a function has the error of a call and succeeds, if there is one.
func (s *service) passesOver(c, around inspector.Cursor) ast.Node {
	assignment, ok := c.Parent().Node().(*ast.AssignStmt)
	if !ok || len(assignment.Rhs) != 1 {
		return nil
	}
	err := s.variable(assignment.Lhs[len(assignment.Lhs)-1])
	branch, init := c.Parent().Parent().Node().(*ast.IfStmt)
	if !init {
		next, ok := c.Parent().NextSibling()
		if !ok {
			return nil
		}
		if branch, ok = next.Node().(*ast.IfStmt); !ok {
			return nil
		}
	}
	if err == nil || !s.isFailure(branch.Cond, err) || branch.Else != nil || len(branch.Body.List) == 0 {
		return nil
	}
	last := len(branch.Body.List) - 1
	for _, statement := range branch.Body.List[:last] {
		if !s.onlyTells(statement, err) {
			return nil
		}
	}
	final := branch.Body.List[last]
	if s.succeeds(final, around) || init && assignment.Tok == token.DEFINE && s.logs(final) {
		return branch.Body
	}
	return nil
}

// isFailure reports whether a condition is err != nil.
func (s *service) isFailure(condition ast.Expr, err *types.Var) bool {
	comparison, ok := ast.Unparen(condition).(*ast.BinaryExpr)
	if !ok || comparison.Op != token.NEQ {
		return false
	}
	x, y := comparison.X, comparison.Y
	if s.info.Types[x].IsNil() {
		x, y = y, x
	}
	return s.variable(x) == err && s.info.Types[y].IsNil()
}

// onlyTells reports whether a statement does nothing with an error but give it to a function, and does not use the
// transaction.
func (s *service) onlyTells(statement ast.Stmt, err *types.Var) bool {
	usesTx := false
	ast.Inspect(statement, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && s.info.Types[e].IsValue() && s.isTx(e) {
			usesTx = true
		}
		return !usesTx
	})
	_, call := statement.(*ast.ExprStmt)
	return !usesTx && (call || !s.mentions(statement, err))
}

// succeeds reports whether a statement returns nil as the error of a function.
func (s *service) succeeds(statement ast.Stmt, around inspector.Cursor) bool {
	returned, ok := statement.(*ast.ReturnStmt)
	if !ok || len(returned.Results) == 0 || !s.info.Types[returned.Results[len(returned.Results)-1]].IsNil() {
		return false
	}
	signature, ok := s.signatureOf(around.Node())
	return ok && signature.Results().Len() == len(returned.Results) && isError(signature.Results().At(len(returned.Results)-1).Type())
}

func (s *service) signatureOf(function ast.Node) (*types.Signature, bool) {
	switch f := function.(type) {
	case *ast.FuncDecl:
		fn, ok := s.info.Defs[f.Name].(*types.Func)
		if !ok {
			return nil, false
		}
		return fn.Signature(), true
	case *ast.FuncLit:
		signature, ok := s.info.TypeOf(f).(*types.Signature)
		return signature, ok
	}
	return nil, false
}

// logs reports whether a statement only writes to a log.
func (s *service) logs(statement ast.Stmt) bool {
	expression, ok := statement.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := ast.Unparen(expression.X).(*ast.CallExpr)
	return ok && logs[s.called(call)]
}

var logs = union(
	set("log.Print", "log.Printf", "log.Println", "fmt.Print", "fmt.Printf", "fmt.Println",
		"log/slog.Error", "log/slog.ErrorContext", "log/slog.Warn", "log/slog.WarnContext", "log/slog.Info", "log/slog.InfoContext",
		"log/slog.Debug", "log/slog.DebugContext"),
	methods("log.Logger", "Print", "Printf", "Println"),
	methods("log/slog.Logger", "Error", "ErrorContext", "Warn", "WarnContext", "Info", "InfoContext", "Debug", "DebugContext"),
	methods(watermill+".LoggerAdapter", "Error", "Info", "Debug", "Trace"),
)

// hasSavepoint reports whether a function knows savepoints, after which a failed statement can be taken back.
func (s *service) hasSavepoint(around inspector.Cursor) bool {
	for c := range around.Preorder((*ast.BasicLit)(nil), (*ast.Ident)(nil), (*ast.CallExpr)(nil)) {
		switch n := c.Node().(type) {
		case *ast.CallExpr:
			if s.called(n) == pgx+".Tx.Begin" || s.called(n) == pgx+".BeginFunc" {
				return true
			}
		case ast.Expr:
			if v := s.info.Types[n].Value; v != nil && v.Kind() == constant.String && strings.Contains(strings.ToUpper(constant.StringVal(v)), "SAVEPOINT") {
				return true
			}
		}
	}
	return false
}

package inboxlint

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// Import paths, with which the names below begin.
const (
	root       = "github.com/millrace-go/millrace"
	inbox      = root + "/inbox"
	middleware = root + "/middleware"
	outbox     = root + "/outbox"
	pgxdb      = root + "/pgxdb"
	watermill  = "github.com/ThreeDotsLabs/watermill"
	message    = watermill + "/message"
	wmmw       = watermill + "/message/router/middleware"
	cqrs       = watermill + "/components/cqrs"
	sqlx       = "github.com/jmoiron/sqlx"
	pgx        = "github.com/jackc/pgx/v5"
)

// takers return the transaction of a handler.
var takers = set(inbox+".Tx", pgxdb+".Tx")

type names map[string]bool

func set(all ...string) names {
	n := names{}
	for _, name := range all {
		n[name] = true
	}
	return n
}

// methods returns the names of methods of a type.
func methods(of string, all ...string) names {
	n := names{}
	for _, name := range all {
		n[of+"."+name] = true
	}
	return n
}

func union(all ...names) names {
	n := names{}
	for _, some := range all {
		for name := range some {
			n[name] = true
		}
	}
	return n
}

// called returns the name of what a call calls: path.Func or path.Type.Method, where Type is the one that declares
// the method. It is empty for a call of a function value.
func (s *service) called(call *ast.CallExpr) string {
	fn, _ := typeutil.Callee(s.info, call).(*types.Func)
	return nameOf(fn)
}

func nameOf(fn *types.Func) string {
	if fn == nil || fn.Pkg() == nil {
		return ""
	}
	receiver := fn.Signature().Recv()
	if receiver == nil {
		return pathOf(fn.Pkg()) + "." + fn.Name()
	}
	if name := typeName(receiver.Type()); name != "" {
		return name + "." + fn.Name()
	}
	return ""
}

// typeName returns path.Type for a named type or a pointer to one, else nothing.
func typeName(t types.Type) string {
	if t == nil {
		return ""
	}
	if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
		t = pointer.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return ""
	}
	return pathOf(named.Obj().Pkg()) + "." + named.Obj().Name()
}

// pathOf returns the import path of a package, also of a vendored copy, and of one that is built for a test.
func pathOf(pkg *types.Package) string {
	path, _, _ := strings.Cut(pkg.Path(), " ")
	if at := strings.LastIndex(path, "/vendor/"); at >= 0 {
		path = path[at+len("/vendor/"):]
	}
	return path
}

package inboxlint

import (
	"go/ast"
	"go/constant"
	"regexp"
)

var poolAnalyzer = newAnalyzer("inboxpool",
	"find writes through the pool in a handler that has the transaction of the inbox\n\n"+
		"Such a write is committed by itself, even if the handler fails, and again in each run. Reads are not reported.",
	"pitfalls.md#effects-past-the-transaction", checkPool)

const pool = pgx + "/pgxpool.Pool"

var (
	poolWrites = union(
		methods("database/sql.DB", "Exec", "ExecContext"),
		methods(sqlx+".DB", "MustExec", "MustExecContext", "NamedExec", "NamedExecContext"),
		methods(pool, "Exec", "CopyFrom"),
	)
	poolFunctions = set(sqlx+".NamedExec", sqlx+".NamedExecContext", sqlx+".MustExec", sqlx+".MustExecContext")
	poolQueries   = union(
		methods("database/sql.DB", "Query", "QueryContext", "QueryRow", "QueryRowContext"),
		methods(sqlx+".DB", "Queryx", "QueryxContext", "QueryRowx", "QueryRowxContext", "Get", "GetContext", "Select", "SelectContext", "NamedQuery", "NamedQueryContext"),
		methods(pool, "Query", "QueryRow"),
	)
	poolBegins = union(
		methods("database/sql.DB", "Begin", "BeginTx"), methods(sqlx+".DB", "Beginx", "BeginTxx", "MustBegin", "MustBeginTx"),
		methods(pool, "Begin", "BeginTx"),
	)
)

func checkPool(f *findings) {
	for _, call := range f.handled(f.handlers) {
		name := f.called(call)
		statement, known := f.statement(call)
		switch {
		case (poolWrites[name] || poolFunctions[name] && f.givenPool(call)) && (!known || writes.MatchString(statement) || !reads.MatchString(statement)),
			poolQueries[name] && known && writes.MatchString(statement):
			f.add(call, "a write through the pool in a handler: it is committed by itself, and again in each run; write through the transaction of the inbox")
		case poolBegins[name] && f.readsAndWrites(call):
			f.add(call, "a second transaction in a handler: it is committed by itself, and again in each run; write through the transaction of the inbox")
		case name == outbox+".InTx" && len(call.Args) > 0 && f.isDetached(call.Args[0]):
			f.add(call, "a second transaction in a handler, since the context is not that of the message: it is committed by itself, and again in each run")
		}
	}
}

var (
	writes = regexp.MustCompile(`(?is)^(--[^\n]*\n|/\*.*?\*/|\s|\()*(INSERT|UPDATE|DELETE|MERGE|REPLACE|TRUNCATE|COPY|CALL)\b|^\s*WITH\b.*\b(INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|MERGE\s+INTO)\b`)
	reads  = regexp.MustCompile(`(?is)^(--[^\n]*\n|/\*.*?\*/|\s|\()*(SELECT|WITH|SHOW|EXPLAIN|PRAGMA|SET|RESET|ANALYZE|VACUUM|OPTIMIZE|REFRESH|LISTEN|NOTIFY|LOCK|VALUES|TABLE|DO)\b`)
)

// givenPool reports whether an argument of a call is a pool.
func (s *service) givenPool(call *ast.CallExpr) bool {
	for _, argument := range call.Args {
		if name := typeName(s.info.TypeOf(argument)); name == sqlx+".DB" || name == "database/sql.DB" {
			return true
		}
	}
	return false
}

// statement returns the first constant string that a call is given, if there is one: its SQL.
func (s *service) statement(call *ast.CallExpr) (text string, known bool) {
	for _, argument := range call.Args {
		if v := s.info.Types[argument].Value; v != nil && v.Kind() == constant.String {
			return constant.StringVal(v), true
		}
		for _, v := range s.valuesOf(argument) {
			if c := s.info.Types[v.expr].Value; c != nil && c.Kind() == constant.String {
				return "", false // one of several
			}
		}
	}
	return "", false
}

// readsAndWrites reports whether a call that begins a transaction certainly has no options that say otherwise.
func (s *service) readsAndWrites(call *ast.CallExpr) bool {
	switch len(call.Args) {
	case 0, 1: // none, or the context
		return true
	case 2:
		return s.info.Types[call.Args[1]].IsNil()
	}
	return false
}

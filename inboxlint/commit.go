package inboxlint

import "regexp"

var commitAnalyzer = newAnalyzer("inboxcommit",
	"find handlers that end the transaction of the inbox\n\n"+
		"Commit commits the claim with half of the work, and Rollback drops the claim. Return nil or an error instead. A\n"+
		"deferred Rollback runs before the inbox can commit.",
	"pitfalls.md#commit-rollback-or-ddl-in-a-handler", checkCommit)

var (
	ends   = union(methods("database/sql.Tx", "Commit", "Rollback"), methods(pgx+".Tx", "Commit", "Rollback"))
	endsTx = regexp.MustCompile(`(?is)^\s*(COMMIT|END|BEGIN|START\s+TRANSACTION|ABORT|ROLLBACK)(\s+(WORK|TRANSACTION))?(\s+AND\s+(NO\s+)?CHAIN)?\s*;?\s*$`)
)

func checkCommit(f *findings) {
	for _, call := range calls(f.syntax) {
		if !f.onTx(call) {
			continue
		}
		if ends[f.called(call)] {
			f.add(call, "the transaction is ended by a function that did not begin it: to commit it return nil, to roll it back return an error")
		} else if text, known := f.statement(call); known && endsTx.MatchString(text) {
			f.add(call, "the transaction is ended, by a statement, by a function that did not begin it: to commit it return nil, to roll it back return an error")
		}
	}
}

// Package testdb here is one file that make test-drivers lays over the package of that name, so that tests run with
// other drivers than the root requires. It is in a module of its own, so that the root need not require them.
package testdb

import (
	_ "github.com/lib/pq"           // registers "postgres"
	_ "github.com/mattn/go-sqlite3" // registers "sqlite3"; it needs cgo
)

func init() { others["postgres"], others["sqlite"] = "postgres", "sqlite3" }

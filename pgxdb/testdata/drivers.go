// Package testdb here is one file that make test-drivers lays over the package of that name, so that tests use
// PostgreSQL through pgxdb.
package testdb

import _ "github.com/millrace-go/millrace/pgxdb" // registers "pgxdb"

func init() { others["postgres"] = "pgxdb" }

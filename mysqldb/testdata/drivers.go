// Package testdb here is one file that make test-drivers lays over the package of that name, so that tests use MariaDB
// through mysqldb.
package testdb

import _ "github.com/millrace-go/millrace/mysqldb" // registers "mysqldb"

func init() { others["mysql"] = "mysqldb" }

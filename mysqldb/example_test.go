package mysqldb_test

import (
	"log"

	"github.com/jmoiron/sqlx"

	_ "github.com/millrace-go/millrace/mysqldb" // registers "mysqldb"
)

// With the driver's name and two settings, nothing else changes.
func Example() {
	dsn := "service@tcp(localhost)/service?multiStatements=true&interpolateParams=true"
	db, err := sqlx.Open("mysqldb", dsn) // instead of sqlx.Open("mysql", dsn)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
}

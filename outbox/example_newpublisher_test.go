package outbox_test

import (
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/outbox"
)

// A service that has a *sql.DB wraps it. The name of its driver says which database it is.
func ExampleNewPublisher() {
	db, err := sql.Open("sqlite", "file:service.db")
	check(err)
	defer db.Close() //nolint:errcheck // nothing was opened

	publisher, err := outbox.NewPublisher(sqlx.NewDb(db, "sqlite"), outbox.Config{})
	check(err)
	fmt.Println("without a schema:", publisher.Schema() == "")
	// Output: without a schema: false
}

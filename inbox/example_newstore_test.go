package inbox_test

import (
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
)

// A service that has a *sql.DB wraps it. The name of its driver says which database it is.
func ExampleNewStore() {
	db, err := sql.Open("sqlite", "file:service.db")
	check(err)
	defer db.Close() //nolint:errcheck // nothing was opened

	store, err := inbox.NewStore(sqlx.NewDb(db, "sqlite"), inbox.Config{})
	check(err)
	fmt.Println("without a schema:", store.Schema() == "")
	// Output: without a schema: false
}

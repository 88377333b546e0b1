// Command commit shows whether modernc.org/sqlite leaves a transaction open whose COMMIT
// failed. See docs/upstream.md.
package main

import (
	"database/sql"
	"fmt"
	"log"

	_ "modernc.org/sqlite" // registers "sqlite"
)

func main() {
	db := must(sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)"))
	db.SetMaxOpenConns(1)
	must(db.Exec(`CREATE TABLE t (id INTEGER PRIMARY KEY, p INTEGER REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)`))
	tx := must(db.Begin())
	must(tx.Exec(`INSERT INTO t VALUES (1, 2)`))
	fmt.Println("COMMIT:", tx.Commit())
	_, err := db.Begin()
	fmt.Println("the next BEGIN:", err)
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

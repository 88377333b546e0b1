// Command quickstart posts payments to accounts while everything goes wrong: payments come
// twice and out of order, the handler fails at random, and the process is killed in the
// middle of its work, again and again. In the end each payment must have been posted once.
//
// service.go is what a user of Millrace writes; the other files make its life hard.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"
)

const (
	payments = 3000
	crashes  = 6
)

func main() {
	file := flag.String("serve", "", "be the service, on this database; without it, be the broker")
	flag.Parse()
	play := demo
	if *file != "" {
		play = func() error { return serve(*file) }
	}
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func demo() error {
	dir, err := os.MkdirTemp("", "millrace-quickstart-")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "accounts.db")
	db, err := open(file)
	if err != nil {
		return err
	}
	return errors.Join(run(db, file), db.Close(), os.RemoveAll(dir))
}

// run lets the broker loose on the service and compares what was posted with what should be.
func run(db *sqlx.DB, file string) error {
	if err := createAccounts(db); err != nil {
		return err
	}
	b := newBroker()
	if err := b.run(file); err != nil {
		return err
	}
	applied, wrong, err := inspect(db, b.balances)
	if err != nil {
		return err
	}
	for _, row := range []struct {
		what  string
		count int
	}{
		{"deliveries", b.count["delivered"]},
		{"duplicates skipped", b.count["duplicate"]},
		{"handler failures", b.count["failed"]},
		{"crashes", b.count["crashed"]},
		{"effects applied", applied},
		{"effects expected", payments},
		{"wrong balances", wrong},
	} {
		fmt.Printf("%-20s %6d\n", row.what, row.count)
	}
	if applied != payments || wrong > 0 {
		return errors.New("effects were lost, or happened twice")
	}
	return nil
}

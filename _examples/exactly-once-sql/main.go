// Command exactly-once-sql is a bank that takes payments from one topic of watermill-sql and
// sends receipts to another, while everything goes wrong: payments come twice and out of
// order, handlers fail at random, and the process is killed in the middle of its work. In
// the end each payment must have been posted once, and have one receipt.
//
// service.go is what a user of Millrace writes; the other files make its life hard.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const (
	payments  = 400
	handlings = 2 * payments // each is posted, and its receipt is added to a statement
	crashes   = 5
)

func main() {
	dsn := flag.String("db",
		cmp.Or(os.Getenv("MILLRACE_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/postgres"),
		"`DSN` of a PostgreSQL server on which databases may be created")
	name := flag.String("serve", "", "be the bank, on the databases of this `name`; without it, be everything else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	play := demo
	if *name != "" {
		play = func(ctx context.Context, dsn string) error { return serve(ctx, dsn, *name) }
	}
	err := play(ctx, *dsn)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "exactly-once-sql:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, dsn string) error {
	return withDatabases(ctx, dsn, func(name string, d *databases) error {
		if err := d.migrate(ctx); err != nil {
			return err
		}
		c := &chaos{
			databases: d, dsn: dsn, name: name,
			balances: make(map[int]int), count: make(map[string]int),
		}
		if err := c.publish(); err != nil {
			return err
		}
		if err := c.run(ctx); err != nil {
			return err
		}
		return c.reconcile(ctx)
	})
}

// Command cqrs runs a hotel with Watermill's CQRS component: commands and events go through
// the outbox, and their handlers are inside the inbox. Half of the messages come twice, and
// one handler run in ten fails. In the end the report must say what was booked.
//
// hotel.go and service.go are what a user of Millrace writes; chaos.go makes its life hard.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

const requests = 300

func main() {
	if err := demo(); err != nil {
		fmt.Fprintln(os.Stderr, "cqrs:", err)
		os.Exit(1)
	}
}

func demo() error {
	dir, err := os.MkdirTemp("", "millrace-cqrs-")
	if err != nil {
		return err
	}
	// The settings that inbox and outbox need: see docs/databases.md.
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "hotel.db")+"?_txlock=immediate"+
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return err
	}
	return errors.Join(run(db), db.Close(), os.RemoveAll(dir))
}

func run(db *sqlx.DB) error {
	if _, err := db.Exec(tables); err != nil {
		return err
	}
	var count counter
	s, err := newService(db, newCareless(), inbox.Config{Observers: []inbox.Observer{&count}})
	if err != nil {
		return err
	}
	s.router.AddMiddleware(unlucky) // the last one added stands next to the handler

	const patience = 2 * time.Minute
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		defer stop()
		stopped <- s.run(ctx)
	}()
	err = sendRequests(ctx, s)
	if err == nil {
		err = awaitQuiet(ctx, s, &count)
	}
	stop()
	if err := errors.Join(err, <-stopped); err != nil {
		return err
	}
	fmt.Printf("\n%-20s %8d\n%-20s %8d\n%-20s %8d\n\n", "messages handled", count.completed.Load(),
		"duplicates skipped", count.duplicates.Load(), "handler failures", count.failures.Load())
	return reconcile(db)
}

func sendRequests(ctx context.Context, s *service) error {
	for range requests {
		cmd := BookRoom{Room: 1 + rand.IntN(50), Nights: 1 + rand.IntN(7), Price: 80 + rand.IntN(100)}
		if err := s.request(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}

// awaitQuiet waits until the outbox is empty. Then all is done: a message leaves it when it
// was acked, and what its handlers sent was stored before that.
func awaitQuiet(ctx context.Context, s *service, count *counter) error {
	for {
		backlog, err := s.out.Backlog(ctx, outbox.BacklogOptions{})
		if err != nil {
			return err
		}
		fmt.Printf("handled %4d, in the outbox %4d\n", count.completed.Load(), backlog.Unsent().N)
		if backlog.Unsent().N == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// reconcile compares what was requested with what became of it.
func reconcile(db *sqlx.DB) error {
	differences := 0
	fmt.Printf("%-20s %8s %8s\n", "", "expected", "actual")
	for _, row := range []struct{ what, expected, actual string }{
		{"rooms booked", `SELECT COUNT(*) FROM request`, `SELECT COUNT(*) FROM booking`},
		{"beers ordered", `SELECT SUM(nights) FROM request`, `SELECT SUM(count) FROM beer`},
		{"reported bookings", `SELECT COUNT(*) FROM request`, `SELECT bookings FROM report`},
		{"reported revenue", `SELECT SUM(nights * price) FROM request`, `SELECT revenue FROM report`},
		{"reported beers", `SELECT SUM(nights) FROM request`, `SELECT beers FROM report`},
	} {
		var expected, actual int
		if err := errors.Join(db.Get(&expected, row.expected), db.Get(&actual, row.actual)); err != nil {
			return err
		}
		fmt.Printf("%-20s %8d %8d\n", row.what, expected, actual)
		if actual != expected {
			differences++
		}
	}
	if differences > 0 {
		return errors.New("the report is wrong: effects were lost, or happened twice")
	}
	return nil
}

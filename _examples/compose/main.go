// Command compose is a service of payments, its relay and its dashboard, as compose.yaml starts them, each with the
// settings of its environment:
//
//	compose payments    takes and books payments, and serves its metrics
//	compose relay       sends what the outbox has, and serves its metrics
//	compose dashboard   serves the dashboard
//
// Without an argument it starts the three as processes without containers, pays, and prints what metrics, dashboard and
// traces tell of it. Then it needs PostgreSQL and RabbitMQ, which `make up` starts.
//
// payments.go and relay.go are what a user of Millrace writes.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

// run plays the role that the argument names, or shows all of them.
func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 1 {
		return show(ctx)
	}
	roles := map[string]func(context.Context, *sqlx.DB) error{"payments": payments, "relay": relay, "dashboard": pages}
	play := roles[os.Args[1]]
	if play == nil {
		return fmt.Errorf("%q is none of payments, relay, dashboard", os.Args[1])
	}
	db, err := sqlx.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(20)
	return errors.Join(play(ctx, db), db.Close())
}

// serve serves h on LISTEN until ctx ends.
func serve(ctx context.Context, h http.Handler) error {
	listener, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Command dashboard runs a service whose messages fail, get stuck and are held, on SQLite, and
// shows them in a browser:
//
//	go run . -listen 127.0.0.1:8642
//
// Without -listen it looks at its own pages as a browser would, mends one message, and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"
)

func main() {
	listen := flag.String("listen", "", "`address` to serve the dashboard at until interrupted")
	flag.Parse()
	if err := run(*listen); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(listen string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "millrace-dashboard-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "demo.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(8)
	defer func() { err = errors.Join(err, db.Close()) }()
	s, err := newService(ctx, db)
	if err != nil {
		return err
	}
	if err := s.handlers(); err != nil {
		return err
	}
	return s.run(ctx, listen)
}

// running calls work once the router runs, unless ctx ends before.
func (s *service) running(ctx context.Context, work func(context.Context) error) error {
	select {
	case <-s.router.Running():
		return work(ctx)
	case <-ctx.Done():
		return nil
	}
}

// run serves until ctx ends, or takes the tour if there is no address.
func (s *service) run(ctx context.Context, listen string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at := listen
	if at == "" {
		at = "127.0.0.1:0"
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: s.web(), ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 5)
	work := []func() error{
		func() error { return s.router.Run(ctx) },
		func() error { return s.running(ctx, s.relay.Run) },
		func() error { return s.running(ctx, s.traffic) },
		func() error { return s.pages.Run(ctx) },
	}
	for _, w := range work {
		go func() { ended <- w() }()
	}
	go func() { _ = web.Serve(listener) }() // until Shutdown
	home := "http://" + listener.Addr().String() + "/admin/messages/"
	fmt.Printf("the dashboard is at %s: sign in with any name and the password %s\n", home, demoPassword)
	var result error
	if listen == "" {
		result = tour(ctx, home)
		cancel()
	}
	for range work {
		result = errors.Join(result, <-ended)
		cancel() // one that ends ends all
	}
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer done()
	return errors.Join(result, web.Shutdown(closing), s.store.Close(closing))
}

// Command metrics is a service that Prometheus scrapes. It books some payments, one of them
// twice and one that cannot be booked, and prints what its metrics say then. With -serve it
// goes on until it is interrupted, for a Prometheus of your own.
//
// service.go is what a user of Millrace writes.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"
)

func main() {
	serve := flag.Bool("serve", false, "go on until interrupted")
	listen := flag.String("listen", "127.0.0.1:0", "`address` to serve /metrics on")
	flag.Parse()
	if err := run(*listen, *serve); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

func run(listen string, serve bool) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	dir, err := os.MkdirTemp("", "millrace-metrics-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := newService(ctx, dir)
	if err != nil {
		return err
	}
	address, stop, err := s.start(ctx, listen)
	if err != nil {
		return err
	}
	fmt.Printf("metrics: http://%s/metrics\n", address)
	if serve {
		<-ctx.Done()
	} else {
		err = demo(address)
	}
	return errors.Join(err, stop())
}

// start runs router, relay and server until stop is called.
func (s *service) start(ctx context.Context, listen string) (address string, stop func() error, err error) {
	router, err := s.router()
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Second}
	after := context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancel(after)
	var all sync.WaitGroup
	failed := make(chan error, 3)
	all.Go(func() { failed <- router.Run(ctx) })
	all.Go(func() { failed <- s.relay.Run(ctx) })
	all.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	select {
	case <-router.Running():
	case err := <-failed: // it did not start
		cancel()
		err = errors.Join(err, server.Close())
		all.Wait()
		return "", nil, err
	}
	return listener.Addr().String(), func() error {
		err := errors.Join(router.Close(), server.Close())
		cancel()
		all.Wait()
		close(failed)
		for e := range failed {
			err = errors.Join(err, e)
		}
		return errors.Join(err, s.store.Close(after), s.broker.Close(), s.db.Close())
	}, nil
}

// wanted is what the demo waits for, and then prints.
var wanted = []string{
	`millrace_inbox_completed_total{consumer="accounts"} 3`,
	`millrace_inbox_duplicates_total{consumer="accounts",event_type="paid"} 1`,
	`millrace_inbox_failures_total{consumer="accounts",reason="handler error"} 3`,
	`millrace_inbox_parked_total{consumer="accounts",reason="attempts"} 1`,
	`millrace_inbox_messages{consumer="accounts",state="parked"} 1`,
	`millrace_inbox_retention_seconds{consumer="accounts"} 604800`,
	`millrace_outbox_published_total{topic="receipts"} 3`,
	`millrace_outbox_unowned_shards 0`,
	`millrace_inbox_up 1`,
}

// demo pays, and waits until the metrics tell of it.
func demo(address string) error {
	for _, account := range []string{"ann", "bob", "ann", "cyd", "nobody"} { // ann pays twice by mistake
		response, err := http.PostForm("http://"+address+"/pay", url.Values{"account": {account}, "id": {"payment of " + account}})
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil {
			return err
		}
	}
	const patience = time.Minute
	for began := time.Now(); ; {
		missing, err := look(address)
		switch {
		case err != nil:
			return err
		case len(missing) == 0:
			fmt.Println(strings.Join(wanted, "\n"))
			return nil
		case time.Since(began) > patience:
			return fmt.Errorf("the metrics do not say: %s", strings.Join(missing, "; "))
		}
		<-time.After(100 * time.Millisecond)
	}
}

// look returns which of the wanted lines are not there.
func look(address string) (missing []string, err error) {
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	lines := make(map[string]bool)
	scanner := bufio.NewScanner(response.Body)
	for scanner.Scan() {
		lines[scanner.Text()] = true
	}
	for _, line := range wanted {
		if !lines[line] {
			missing = append(missing, line)
		}
	}
	return missing, scanner.Err()
}

// Versions runs the suites on the servers of tests/versions.sh, one after the other:
//
//	go run ./tests/versions [-update] [name...]
//
// Without names it runs all of them. It prints a table of how many tests of each suite passed on each server, and what
// a failed test said. With -update it writes its lines of the table into docs/databases.md, and the versions into README.md.
// tests/services.sh must have told where the usual servers are: a suite needs others beside the one that it is run for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is one of tests/versions.sh.
type server struct{ name, service, dsn, version string }

// suites are the columns of the table.
var suites = []string{"conformance", "outbox", "gate", "durable", "interop"}

// part is what runs of a package, for a suite.
type part struct{ suite, pkg, tests string }

var (
	databases = []part{
		{"conformance", "tests", ""},
		{"durable", "tests/durable", ""},
		{"outbox", "tests/outbox", ""},
		{"gate", "tests/gate", ""},
		{"interop", "tests/interop", ""},
		{"interop", "pubsub/watermillsql", ""},
	}
	parts = map[string][]part{
		"postgres": databases,
		"mysql":    databases,
		"rabbitmq": {
			{"interop", "pubsub/rabbitmq", ""},
			{"interop", "tests/deadletter", "RabbitMQ|DeliveryLimit"},
			{"interop", "tests/interop", "RabbitMQ"},
			{"durable", "tests/durable", "TestMessageThatEndsTheProcess|TestNackStorm"},
		},
		"nats":  {{"interop", "tests/interop", "JetStream"}},
		"redis": {{"interop", "tests/interop", "Redis"}, {"interop", "middleware/redisleases", ""}},
	}
)

func main() {
	update := flag.Bool("update", false, "write docs/databases.md and README.md")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *update, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1) //nolint:gocritic // the process ends anyway
	}
}

func run(ctx context.Context, update bool, names []string) error {
	servers, err := listed(ctx, names)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "millrace-versions-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := build(ctx, folder, servers); err != nil {
		return err
	}
	var rows []row
	var failed []string
	for _, s := range servers {
		r, err := tried(ctx, folder, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for _, suite := range suites {
			if c := r.counts[suite]; c != nil && c.failed > 0 {
				failed = append(failed, fmt.Sprintf("%s × %s: %d", s.name, suite, c.failed))
			}
		}
		rows = append(rows, r)
		fmt.Println(strings.Join(r.cells(), " | "))
	}
	if update {
		if err := write(rows); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("tests failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

func listed(ctx context.Context, names []string) ([]server, error) {
	list, err := script(ctx, "list")
	if err != nil {
		return nil, err
	}
	var servers []server
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(names) == 0 || slices.Contains(names, f[0]) {
			servers = append(servers, server{name: f[0], service: f[1]})
		}
	}
	if len(servers) == 0 || len(names) > 0 && len(servers) != len(names) {
		return nil, fmt.Errorf("%q: some are unknown; tests/versions.sh list", names)
	}
	return servers, nil
}

func script(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "tests/versions.sh", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("tests/versions.sh %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

// build makes a test binary of each package, once for all servers.
func build(ctx context.Context, folder string, servers []server) error {
	built := map[string]bool{}
	for _, s := range servers {
		for _, p := range parts[s.service] {
			if built[p.pkg] {
				continue
			}
			built[p.pkg] = true
			if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary(folder, p.pkg), "./"+p.pkg).CombinedOutput(); err != nil {
				return fmt.Errorf("build the tests of %s: %w\n%s", p.pkg, err, out)
			}
		}
	}
	return nil
}

func binary(folder, pkg string) string {
	return filepath.Join(folder, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// row is what became of the tests on a server.
type row struct {
	server

	counts map[string]*count // by suite
}

// tried runs what concerns a server, two packages at a time: tests wait more than they compute.
func tried(ctx context.Context, folder string, s server) (r row, err error) {
	began := time.Now()
	answer, err := script(ctx, "start", s.name)
	defer func() {
		_, stopped := script(context.WithoutCancel(ctx), "stop", s.name)
		err = errors.Join(err, stopped)
	}()
	if err != nil {
		return row{}, err
	}
	s.dsn, s.version, _ = strings.Cut(answer, " ")
	r = row{server: s, counts: map[string]*count{}}
	var mu sync.Mutex
	var errs []error
	var group sync.WaitGroup
	turns := make(chan struct{}, 2)
	for _, p := range parts[s.service] {
		group.Go(func() {
			turns <- struct{}{}
			c, err := p.run(ctx, folder, s)
			<-turns
			mu.Lock()
			defer mu.Unlock()
			if r.counts[p.suite] == nil {
				r.counts[p.suite] = &count{}
			}
			r.counts[p.suite].add(c)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.pkg, err))
			}
		})
	}
	group.Wait()
	fmt.Fprintf(os.Stderr, "%s, %s: %v\n", s.name, s.version, time.Since(began).Round(time.Second))
	return r, errors.Join(errs...)
}

func (p part) run(ctx context.Context, folder string, s server) (count, error) {
	args := []string{"tool", "test2json", "-t", binary(folder, p.pkg), "-test.v=test2json", "-test.timeout=20m"}
	if p.tests != "" {
		args = append(args, "-test.run="+p.tests)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = p.pkg
	cmd.Env = append(os.Environ(), "MILLRACE_TEST_ONLY="+s.service, "MILLRACE_TEST_"+strings.ToUpper(s.service)+"="+s.dsn)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return count{}, err
	}
	if err := cmd.Start(); err != nil {
		return count{}, err
	}
	tests, err := read(events)
	ended := cmd.Wait()
	if err != nil {
		return count{}, err
	}
	c := counted(tests, s.service == "postgres" || s.service == "mysql")
	for _, t := range tests.failed() {
		fmt.Fprintf(os.Stderr, "%s: %s of %s failed:\n%s\n", s.name, t.name, p.pkg, t.said.String())
	}
	switch {
	case ended != nil && c.failed == 0: // it did not get to its tests, or was ended, or a test without a database failed
		_, _ = io.WriteString(os.Stderr, tests.said.String())
		return c, ended
	case c.passed+c.failed == 0:
		return c, errors.New("no test ran")
	}
	return c, nil
}

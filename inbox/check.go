package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/millrace/internal/checkup"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Severity says how serious a finding is.
type Severity int

// Severities of findings.
const (
	Warning Severity = iota // works, but a failure may cost more than it should
	Error                   // does not work, or is not safe
)

// String returns the name of the severity.
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// Finding is a problem that [Store.Check] found, and its remedy.
type Finding struct {
	Severity Severity
	Subject  string // the setting or table
	Problem  string
	Remedy   string
}

// String puts the finding into one line.
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Subject, f.Problem, f.Remedy) }

// Check compares the live tables and the server's settings with what the inbox needs. It also
// looks for claims that no janitor deletes, steps in doubt that nobody decides, retentions that are
// too short, and queues of this process that nothing watches. Each finding says what is wrong and how
// to mend it; errors come first. Check claims a key in a transaction that it rolls back, and leaves
// nothing behind. It returns an error only if the database does
// not answer or refuses connections. Do not call it in a handler.
//
// Settings belong to a connection, so they are best put into the connection string, which
// applies them to every connection of the pool. A pool with SetMaxOpenConns and one of these
// connection strings has no finding, unless its server is set up carelessly:
//
//	PostgreSQL, pgx or lib/pq
//	  postgres://user@host/db?idle_in_transaction_session_timeout=30000&lock_timeout=10000
//	MySQL 8 and MariaDB 11.1 or newer, go-sql-driver
//	  user@tcp(host)/db?transaction_isolation='READ-COMMITTED'&innodb_lock_wait_timeout=10
//	    &wait_timeout=60                      MySQL, with SetConnMaxIdleTime(30*time.Second)
//	    &idle_write_transaction_timeout=30    MariaDB
//	MariaDB 10, go-sql-driver
//	  user@tcp(host)/db?tx_isolation='READ-COMMITTED'&innodb_lock_wait_timeout=10
//	    &idle_write_transaction_timeout=30
//	    &wsrep_sync_wait=7                    MariaDB of any version, in a Galera cluster
//	SQLite, modernc.org/sqlite
//	  file:name?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)
//	    &_txlock=immediate
//	SQLite, mattn/go-sqlite3
//	  file:name?_busy_timeout=10000&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate
//
// In go-sql-driver's string, write the quotes as %27. The idle timeouts are above the handlers'
// Timeout, the lock timeouts above their TwinWait.
//
// A pooler in transaction mode drops the settings of a connection string, or mixes them up among
// its clients. Behind a pooler, set the timeouts with ALTER ROLE … SET, and let pgx run with
// default_query_exec_mode=exec unless the pooler keeps prepared statements. Check opens two
// connections and recognises a pooler if one server process serves both. It never reports a pooler
// that is not there, but it can miss a busy one.
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	if _, live := s.db.Live(ctx); live {
		return nil, errors.New("inbox: check: it would wait for the transaction of this handler: call Check outside of handlers")
	}
	return s.check(ctx, (*inspection).consumers)
}

// check runs the checks that are always made, and more.
func (s *Store) check(ctx context.Context, more ...func(*inspection, context.Context) error) ([]Finding, error) {
	err := s.db.PingContext(ctx)
	if dialect.Refused(err) {
		return nil, fmt.Errorf("inbox: check: the database refuses the settings of the connection string: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: check: %w: is the pool open, and does its connection string name a server "+
			"that runs and lets this user in? %w", ErrUnavailable, err)
	}
	c := inspection{store: s}
	steps := append([]func(*inspection, context.Context) error{(*inspection).server}, more...)
	steps = append(steps, (*inspection).janitor, (*inspection).steps, (*inspection).driver, (*inspection).trial)
	for _, step := range steps {
		if err := step(&c, ctx); err != nil {
			return nil, fmt.Errorf("inbox: check: %w", database.Explain(err))
		}
	}
	slices.SortStableFunc(c.findings, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return c.findings, nil
}

// inspection is one run of Check.
type inspection struct {
	store    *Store
	findings []Finding
}

func (c *inspection) fail(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{Error, subject, problem, remedy})
}

func (c *inspection) warn(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{Warning, subject, problem, remedy})
}

func (c *inspection) failed() bool {
	return slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Severity == Error })
}

// server checks the server's settings and the tables.
func (c *inspection) server(ctx context.Context) error {
	s := c.store
	server := checkup.Checkup{
		DB: s.db.DB, Dialect: s.dialect, Schema: s.config.Schema, TablePrefix: s.config.TablePrefix,
		MaxInFlight: s.config.MaxInFlight, TwinWait: s.longestTwinWait(),
		Blobs: s.config.BlobsAbove > 0, Queue: s.queues(),
	}
	findings, err := server.Run(ctx)
	for _, f := range findings {
		if f.Fatal {
			c.fail(f.Subject, f.Problem, f.Remedy)
		} else {
			c.warn(f.Subject, f.Problem, f.Remedy)
		}
	}
	return err
}

// queues reports whether a queue of this process delivers stored messages.
func (s *Store) queues() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bells) > 0
}

func (s *Store) longestTwinWait() time.Duration {
	var defaults ConsumerConfig
	defaults.setDefaults()
	longest := defaults.TwinWait
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.consumers {
		longest = max(longest, c.config.TwinWait)
	}
	return longest
}

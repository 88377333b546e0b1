// Package checkup checks that a database server's settings, and the tables in it, suit the inbox.
package checkup

import (
	"context"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Finding is a setting or a table that does not suit the inbox.
type Finding struct {
	Fatal   bool // with it, the inbox does not work or is not safe
	Subject string
	Problem string
	Remedy  string
}

// Checkup is one run of the checks.
type Checkup struct {
	DB          *sqlx.DB
	Dialect     *dialect.Dialect
	Schema      string // of the tables; empty where the connection finds them
	TablePrefix string
	MaxInFlight int           // of the inbox; 0 is unbounded
	TwinWait    time.Duration // the longest of all consumers
	Blobs       bool          // large payloads are kept outside their rows
	Queue       bool          // stored messages are delivered

	pool     int  // the maximum size; 0 is unbounded
	pooled   bool // a pooler in transaction mode is in front of the server
	cut      bool // the server cuts lists, such as those of settings and tables: nothing else is judged by them
	settings settings
	findings []Finding
}

// Run returns the findings.
func (c *Checkup) Run(ctx context.Context) ([]Finding, error) {
	c.pool = c.DB.Stats().MaxOpenConnections
	if err := c.server(ctx); err != nil {
		return nil, err
	}
	if c.cut {
		return c.findings, nil
	}
	err := c.tables(ctx)
	return c.findings, err
}

func (c *Checkup) fail(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{true, subject, problem, remedy})
}

func (c *Checkup) failed() bool {
	return slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Fatal })
}

func (c *Checkup) warn(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{false, subject, problem, remedy})
}

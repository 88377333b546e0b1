// Package checkup compares a database server's settings, and the tables in it, with what the inbox needs.
package checkup

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Finding is a setting, or a table, that is not as the inbox needs it.
type Finding struct {
	Fatal   bool // it does not work, or is not safe
	Subject string
	Problem string
	Remedy  string
}

// Checkup is one run.
type Checkup struct {
	DB          *sqlx.DB
	Dialect     *dialect.Dialect
	TablePrefix string
	MaxInFlight int           // of the inbox; 0 is unbounded
	TwinWait    time.Duration // the longest of its consumers

	pool     int // greatest size; 0 is unbounded
	pooled   bool
	settings settings
	findings []Finding
}

// Run returns what is not as the inbox needs it.
func (c *Checkup) Run(ctx context.Context) ([]Finding, error) {
	c.pool = c.DB.Stats().MaxOpenConnections
	if err := c.server(ctx); err != nil {
		return nil, err
	}
	err := c.tables(ctx)
	return c.findings, err
}

func (c *Checkup) fail(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{true, subject, problem, remedy})
}

func (c *Checkup) warn(subject, problem, remedy string) {
	c.findings = append(c.findings, Finding{false, subject, problem, remedy})
}

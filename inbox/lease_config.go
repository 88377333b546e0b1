package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/millrace/internal/stored"
	"github.com/millrace-go/millrace/internal/turns"
)

// LeaseConfig configures how one consumer takes leases. middleware.Deduplicate fills it in; its
// fields of the same names document each one and its default.
type LeaseConfig struct {
	Name      string
	Handler   string
	Epoch     int
	Key       Key
	Lease     time.Duration
	Wait      time.Duration
	Retention time.Duration
	OnReplay  ReplayRule
}

func (c *LeaseConfig) setDefaults() {
	if c.Lease == 0 {
		c.Lease = time.Minute
	}
	if c.Wait == 0 {
		c.Wait = 5 * time.Second
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	c.Key = c.Key.withDefault()
}

// minLease is below every useful lease and retention, and above a number whose unit was forgotten.
const minLease = 100 * time.Millisecond

// Validate returns every problem of c at once. Name may still be missing.
func (c LeaseConfig) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if most := maxName - len(stored.LeaseNames); len(c.Name) > most {
		problem("Consumer %.20q… is longer than %d bytes: choose a shorter name", c.Name, most)
	}
	checkEpoch(problem, c.Epoch)
	switch {
	case c.Lease < minLease:
		problem("Lease %v is below %v", c.Lease, minLease)
	case c.Lease > century:
		problem("Lease %v is longer than a century", c.Lease)
	}
	howLong(problem, "Wait", c.Wait)
	switch {
	case c.Retention != Forever && c.Retention < minLease:
		problem("Retention %v is below %v; inbox.Forever keeps all", c.Retention, minLease)
	case c.Retention > century:
		problem("Retention %v is longer than a century; inbox.Forever keeps all", c.Retention)
	}
	if c.OnReplay != ReplayAllow && c.OnReplay != ReplayRefuse {
		problem("OnReplay %d is neither ReplayAllow nor ReplayRefuse: without a transaction nothing that is sent can be kept back", c.OnReplay)
	}
	return errors.Join(problems...)
}

// retention returns how long a confirmed key is kept, in place of [Forever] a century.
func (c *LeaseConfig) retention() time.Duration {
	if c.Retention == Forever {
		return century
	}
	return c.Retention
}

// leaseConsumer takes leases for one consumer of messages.
type leaseConsumer struct {
	leases *Leases
	config LeaseConfig
	turns  *turns.Turns // one for all handlers of the consumer
	heart  heart
	pace   pace // of refused messages
}

package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/steady"
)

// Config configures a [Builder]. The zero value is right for most services.
type Config struct {
	// Namespace is the prefix of every metric's name. Defaults to "millrace".
	Namespace string

	// Interval is how long the gauges of the tables are reused before the tables are read again.
	// Defaults to 15 seconds, a common scrape interval.
	Interval time.Duration

	// Timeout limits reading the tables. Defaults to 5 seconds, below Prometheus's 10 seconds for a
	// whole scrape.
	Timeout time.Duration

	// CountTo is where counting messages stops. Defaults to 10,000.
	CountTo int

	// MaxValues is how many event types per consumer, and how many topics, have their own series;
	// the others share "other". Defaults to 50.
	MaxValues int

	// Buckets are the buckets of histograms of seconds. Defaults to 12 from 1 ms to 60 s.
	Buckets []float64

	// Logger logs failures to read the tables. Defaults to slog.Default.
	Logger watermill.LoggerAdapter
}

func (c *Config) setDefaults() {
	c.Namespace = cmp.Or(c.Namespace, "millrace")
	c.Interval = cmp.Or(c.Interval, 15*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.CountTo = cmp.Or(c.CountTo, 10_000)
	c.MaxValues = cmp.Or(c.MaxValues, 50)
	if c.Buckets == nil {
		c.Buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .5, 1, 5, 15, 60}
	}
	c.Logger = steady.Default(c.Logger)
}

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	c.setDefaults()
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !identifier.MatchString(c.Namespace) {
		problem("Namespace %q must be letters, digits and _", c.Namespace)
	}
	if c.Interval < 0 {
		problem("Interval %v is negative", c.Interval)
	}
	if c.Timeout < 0 {
		problem("Timeout %v is negative", c.Timeout)
	}
	if c.CountTo < 0 {
		problem("CountTo %d is negative", c.CountTo)
	}
	if c.MaxValues < 0 {
		problem("MaxValues %d is negative", c.MaxValues)
	}
	for i := 1; i < len(c.Buckets); i++ {
		if c.Buckets[i] <= c.Buckets[i-1] {
			problem("Buckets must grow, and %v follows %v", c.Buckets[i], c.Buckets[i-1])
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("metrics: invalid Config: %w", err)
	}
	return nil
}

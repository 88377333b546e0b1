package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/steady"
)

// Forever is the retention with which relays never delete sent messages.
const Forever time.Duration = -1

// Unlimited is the MaxAttempts with which relays never park a message for failing.
const Unlimited = -1

// mostLease bounds leases: no clock can show the end of the longest durations, and a relay with such a
// lease would send nothing.
const mostLease = 24 * time.Hour

// OnParked says what a relay does with the later messages of a key when it parks one of them.
type OnParked int

// What a relay does with the messages behind a parked one.
const (
	// HoldKey holds them back until an operator has decided about the parked one.
	HoldKey OnParked = iota
	// Continue sends them.
	Continue
)

// RelayConfig is how a [Relay] behaves. The zero value is right for most services.
type RelayConfig struct {
	// Logger gets every decision a person may ask about. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres", "mysql" (also for MariaDB) or "sqlite". Defaults
	// to what the driver, or else the server, says.
	Dialect string

	// Schema is the PostgreSQL schema of the tables. Defaults to the connection's search path.
	Schema string

	// TablePrefix starts every table's name. Defaults to "millrace_".
	TablePrefix string

	// Name is what operators see of this relay: its host and process, for instance. Defaults
	// to the token of its lease.
	Name string

	// Batch is how many messages the relay reads and publishes at once, fewer if they have more
	// than about 32 MiB together; it holds twice as many in memory, and copies of those on their
	// way. Defaults to 500: a publisher with pipelined confirms gains nothing from more.
	Batch int

	// Lanes is how many calls of the publisher run at once; all messages of a key take the
	// same lane. Defaults to 4: while one waits for its confirms, others send.
	Lanes int

	// KeyBurst is how many messages of one key the relay passes to the publisher in one call.
	// With more than 1, a publisher that goes on after a failure can send a later message of
	// the key before an earlier one. Defaults to 1.
	KeyBurst int

	// Lease is how long a relay that died keeps its shards, a day at most. Defaults to 15 seconds:
	// long enough to outlive a pause of the database, short enough for a restart after a crash.
	Lease time.Duration

	// Poll is the longest pause before the relay looks for messages that nothing announced.
	// Defaults to 1 second.
	Poll time.Duration

	// MaxAttempts is after how many attempts the relay parks a message, or [Unlimited].
	// Defaults to 10, which with the default backoff takes four minutes on average and nine
	// at most. An outage of the broker spends none.
	MaxAttempts int

	// MinBackoff and MaxBackoff bound the pauses between attempts, which double, with full
	// jitter. They default to 1 second and 5 minutes.
	MinBackoff, MaxBackoff time.Duration

	// OnParked says what the relay does with the messages behind a parked one of their key.
	// Defaults to HoldKey: they may depend on it.
	OnParked OnParked

	// Retention is how long sent messages are kept, or [Forever]. Defaults to 0: the relay
	// deletes them when the broker has confirmed them.
	Retention time.Duration

	// Drain bounds how long Run, told to stop, waits for messages on their way to the broker, and
	// for how long RelayBatch tries again to read or to write an outbox that is out of reach. A read
	// that takes too long it first tries with fewer messages.
	// Defaults to 10 seconds, which is below the grace period of most orchestrators.
	Drain time.Duration

	// Observers are told of decisions; see [Observer].
	Observers []Observer
}

func (c *RelayConfig) setDefaults() {
	c.Logger = steady.Default(c.Logger)
	if c.TablePrefix == "" {
		c.TablePrefix = dialect.DefaultPrefix
	}
	orDefault(&c.Batch, 500)
	orDefault(&c.Lanes, 4)
	orDefault(&c.KeyBurst, 1)
	orDefault(&c.MaxAttempts, 10)
	orDefault(&c.Lease, 15*time.Second)
	orDefault(&c.Poll, time.Second)
	orDefault(&c.MinBackoff, time.Second)
	orDefault(&c.MaxBackoff, 5*time.Minute)
	orDefault(&c.Drain, 10*time.Second)
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns every problem of c at once.
func (c RelayConfig) Validate() error {
	c.setDefaults()
	problems := names(c.Schema, c.TablePrefix).Problems(c.Dialect)
	within := func(name string, value, least, most int) {
		if value < least || value > most {
			problems = append(problems, fmt.Errorf("%s %d is not between %d and %d", name, value, least, most))
		}
	}
	if err := checkText("Name", c.Name, false); err != nil {
		problems = append(problems, err)
	}
	within("Batch", c.Batch, 1, 10_000)
	within("Lanes", c.Lanes, 1, 256)
	within("KeyBurst", c.KeyBurst, 1, 10_000)
	if c.MaxAttempts != Unlimited {
		within("MaxAttempts", c.MaxAttempts, 1, 1_000_000)
	}
	within("OnParked", int(c.OnParked), int(HoldKey), int(Continue))
	atLeast := func(name string, value, least time.Duration) {
		if value < least {
			problems = append(problems, fmt.Errorf("%s %v is less than %v", name, value, least))
		}
	}
	atLeast("Lease", c.Lease, time.Second)
	if c.Lease > mostLease {
		problems = append(problems, fmt.Errorf("%s %v is more than %v", "Lease", c.Lease, mostLease))
	}
	atLeast("Poll", c.Poll, time.Millisecond)
	atLeast("MinBackoff", c.MinBackoff, time.Millisecond)
	atLeast("MaxBackoff", c.MaxBackoff, c.MinBackoff)
	atLeast("Drain", c.Drain, 0)
	if c.Retention != Forever {
		atLeast("Retention", c.Retention, 0)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("outbox: invalid RelayConfig: %w", err)
	}
	return nil
}

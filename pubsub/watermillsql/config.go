package watermillsql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/steady"
)

// Config is how a [Publisher] behaves. The zero value is right for most services.
type Config struct {
	// Logger gets a line when Initialize has made sure of the tables. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres" or "mysql" (also for MariaDB). Defaults to what the
	// driver, or else the server, says.
	Dialect string

	// Timeout bounds one call of Publish, and so how long a relay waits for a table that someone
	// else has locked; watermill-sql has no such bound. Defaults to 30 seconds.
	Timeout time.Duration
}

func (c *Config) setDefaults() {
	c.Logger = steady.Apart(steady.Default(c.Logger), nil)
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	c.setDefaults()
	var p problems
	p.dialect(c.Dialect)
	p.positive("Timeout", c.Timeout)
	return p.of("Config")
}

// SubscriberConfig is how a [Subscriber] behaves. ConsumerGroup is required; the other defaults are
// right for a middleware.Inbox with its own defaults.
type SubscriberConfig struct {
	// ConsumerGroup names the readers: each group gets every message, and within a group one
	// subscriber works while the others wait for it to end. Required, up to 255 characters:
	// watermill-sql accepts an empty one, with which services steal each other's messages.
	ConsumerGroup string

	// InboxTimeout is the Timeout of the middleware.Inbox behind this subscriber or, without an
	// Inbox, the longest that a handler runs. Defaults to 25 seconds, as Inbox does.
	InboxTimeout time.Duration

	// AckDeadline is after how long a message that was neither acked nor nacked is redelivered, in
	// this process or another. It covers a delivery with all its resends, and ends the message's
	// context. It must be longer than InboxTimeout: otherwise each redelivery of a slow message
	// begins while the one before still runs, and none ends in time. Defaults to 10 seconds more
	// than InboxTimeout, in which an inbox waits for a copy in another process, and its version
	// gate for the aggregate. It cannot be switched off: a handler that hangs would hold a
	// transaction open for ever, and on PostgreSQL stop every subscriber of the server.
	AckDeadline time.Duration

	// BatchSize is how many messages one transaction of the subscriber reads. The subscriber still
	// delivers them one after the other, but acks them in the database together: after a crash,
	// the whole batch is redelivered. Defaults to 1; watermill-sql's own default is 100.
	//
	// More saves a commit per message, about half of the work if handlers are fast. It costs
	// duplicates after a crash. On PostgreSQL the transaction stays open for the whole batch, stalls
	// the other subscribers of the server, and may outlive idle_in_transaction_session_timeout. On
	// MySQL and MariaDB it locks the end of the table, so that whoever publishes to the topic, even
	// a handler, waits for the batch.
	BatchSize int

	// PollInterval is the pause after the subscriber found the table empty. Defaults to 1 second,
	// as in watermill-sql: a shorter one delivers faster to an idle service, and costs as many more
	// transactions.
	PollInterval time.Duration

	// ResendInterval is the pause before a nacked message is redelivered. Defaults to 1 second, as
	// in watermill-sql. Nothing else slows a failing handler down: the pause does not grow. Nothing
	// ends it early either, and the subscriber's transaction is open meanwhile: Close waits for it,
	// and it must be shorter than what AckDeadline leaves after InboxTimeout, 10 seconds by default.
	// For longer pauses store what fails: see pubsub.Durable.
	ResendInterval time.Duration

	// RetryInterval is the pause after a query failed. Defaults to 1 second, as in watermill-sql.
	// After a deadlock, or a lost race between the subscribers of a group, it is at most 20ms.
	RetryInterval time.Duration

	// Logger is passed to watermill-sql. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres" or "mysql" (also for MariaDB). Defaults to what the
	// driver, or else the server, says.
	Dialect string
}

// margin is twice the TwinWait of an inbox: its Timeout does not include its waits for other
// processes.
const margin = 10 * time.Second

func (c *SubscriberConfig) setDefaults() {
	if c.InboxTimeout == 0 {
		c.InboxTimeout = 25 * time.Second
	}
	if c.AckDeadline == 0 {
		c.AckDeadline = c.InboxTimeout + margin
	}
	if c.BatchSize == 0 {
		c.BatchSize = 1
	}
	for _, interval := range []*time.Duration{&c.PollInterval, &c.ResendInterval, &c.RetryInterval} {
		if *interval == 0 {
			*interval = time.Second
		}
	}
	c.Logger = steady.Apart(steady.Default(c.Logger), nil)
}

// Validate returns every problem of c at once.
func (c SubscriberConfig) Validate() error {
	c.setDefaults()
	var p problems
	p.group(c.ConsumerGroup)
	p.positive("InboxTimeout", c.InboxTimeout)
	p.positive("PollInterval", c.PollInterval)
	p.positive("ResendInterval", c.ResendInterval)
	p.positive("RetryInterval", c.RetryInterval)
	p.dialect(c.Dialect)
	if c.AckDeadline <= c.InboxTimeout {
		p.add("AckDeadline %v is not above InboxTimeout %v: a message would be redelivered while its handler runs",
			c.AckDeadline, c.InboxTimeout)
	} else if left := c.AckDeadline - c.InboxTimeout; c.ResendInterval >= left {
		p.add("ResendInterval %v is not below %v, which AckDeadline leaves after InboxTimeout: the transaction of the subscriber "+
			"is open meanwhile, Close waits, and the message would come again with a context that has ended", c.ResendInterval, left)
	}
	if c.BatchSize < 0 {
		p.add("BatchSize %d is negative", c.BatchSize)
	}
	return p.of("SubscriberConfig")
}

// problems collects the faults of a config, so that a user reads all of them at once.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) positive(name string, d time.Duration) {
	if d <= 0 {
		p.add("%s %v is not positive", name, d)
	}
}

func (p *problems) dialect(name string) {
	if !slices.Contains([]string{"", dialect.PostgresName, dialect.MySQLName}, name) {
		p.add("Dialect %q is not one of postgres, mysql", name)
	}
}

func (p *problems) group(name string) {
	const most = 255 // characters of the column
	switch {
	case name == "":
		p.add("ConsumerGroup is empty: set it to the service's name, so that no other service takes its messages")
	case strings.EqualFold(name, publishersGroup):
		p.add("ConsumerGroup %q is that of the publishers: choose another name", name)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		p.add("ConsumerGroup %q is not text", name)
	case strings.TrimSpace(name) != name:
		p.add("ConsumerGroup %q begins or ends with a space", name)
	case utf8.RuneCountInString(name) > most:
		p.add("ConsumerGroup %.20q… is longer than %d characters", name, most)
	}
}

func (p problems) of(what string) error {
	if err := errors.Join(p...); err != nil {
		return fmt.Errorf("watermillsql: invalid %s: %w", what, err)
	}
	return nil
}

package inbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/build"
	"github.com/millrace-go/millrace/internal/dialect"
)

// Bounds of settings and steps.
const (
	// Forever is the retention of a consumer that never forgets a message.
	Forever time.Duration = -1

	// MinRetention is the shortest retention. The inbox never parks a message as too old that was younger than
	// this, less ClockSkew, when it arrived.
	MinRetention = time.Hour

	// MaxStepResult is how many bytes a step may return. The handler needs no more to continue than,
	// for instance, the provider's id of the effect.
	MaxStepResult = 65_536
)

// Config has the settings of a [Store]. The zero value is right for most services.
type Config struct {
	// Logger gets a line about every decision that a person may ask about. A panic in it is not logged,
	// but counted by [Store.Panics]. Defaults to the logger of the first router whose plugin starts the
	// Store, and until then to slog.Default.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres", "mysql" (and MariaDB) or "sqlite". Defaults to
	// what the driver, or else the server, says.
	Dialect string

	// Schema is the PostgreSQL schema of the tables. Defaults to the connection's search path. Set it, as in
	// outbox.Config, where anything changes the search path, such as a handler or OnBegin.
	Schema string

	// TablePrefix starts every table's name. Defaults to "millrace_".
	TablePrefix string

	// Namespace separates the consumers of services that share one set of tables: two services
	// with a handler of the same name need two namespaces. Defaults to none.
	Namespace string

	// Process names this process in the history of messages that failed here, and in the list of
	// admin.Admin.Processes. Defaults to the host's name and the number of the process, as in
	// "web-1/4711".
	Process string

	// Version names the release of this program in the list of admin.Admin.Processes. Defaults to the
	// version and the commit that Go recorded when it built the program.
	Version string

	// MaxInFlight bounds the transactions open at once, over all consumers of the store.
	// Defaults to the pool's size less one, so that a flood leaves a connection for the rest
	// of the service, or 32 where the pool has no bound. SQLite always has one.
	MaxInFlight int

	// SettledKeys is how many keys of settled messages are kept in memory: a duplicate of those
	// needs no statement. Defaults to 100,000, which takes some 15 MB.
	SettledKeys int

	// WithoutPlugin lets routers without [Store.Plugin] use the Store. Otherwise the inbox refuses
	// their messages with [ErrNoPlugin]: without the plugin, it does not notice a Retry inside the
	// inbox, or another middleware that hides a failure, and commits the effects of a failed run.
	// [Store.Run] only does the background work of the plugin.
	WithoutPlugin bool

	// LogDropped stores a row for each copy that was acked without running the handler, so
	// that admin.Admin.Story can show it. The row lives as long as the default retention.
	LogDropped bool

	// PurgeInterval is the pause between two runs of the janitor. Defaults to 1 minute; the janitor
	// walks a consumer's claims at most once in a hundredth of its retention.
	PurgeInterval time.Duration

	// AllowPayloadChange lets operators correct stored payloads, with admin.Admin.ReplacePayload or on a
	// dashboard of this Store.
	AllowPayloadChange bool

	// Position returns the place of a message in its source, such as Kafka's partition and offset. The
	// inbox stores it with an open message and, with LogDropped, with a copy. If Position returns an
	// error or panics, or the partition is not a number, the inbox stores none.
	Position func(*message.Message) (Position, error)

	// Archive gets completed claims before the janitor deletes them; an error keeps them. What Archive
	// writes through inbox.Tx is committed with the deletion. On MySQL and MariaDB a deadlock or a schema
	// statement ends that transaction, and the claims are kept. If it writes elsewhere, it can get a
	// claim twice, and needs a timeout of seconds: copies of these messages wait for Archive, and on
	// SQLite every writer does. A panic is an error.
	Archive func(ctx context.Context, claims []ExpiredClaim) error

	// Redispatch publishes outcomes whose messages the broker never redelivered, RedispatchAfter
	// (default 5 minutes) after they were stored. Without it, admin.Admin.Unsettled lists them and the
	// Store logs them. A panic of Redispatch is an error.
	Redispatch      message.Publisher
	RedispatchAfter time.Duration

	// Payloads transforms the stored payloads of open messages and of those that a handler
	// produced, for instance to encrypt them. Defaults to storing payloads as they came.
	Payloads payload.Codec

	// BlobsAbove is the size in bytes above which the payload of an open message is kept outside
	// its row: in Blobs or, without Blobs, in a table of its own. Defaults to 65,536 with Blobs, and
	// to keeping every payload in its row without.
	BlobsAbove int
	Blobs      payload.Blobs

	// BlobGrace is how old a payload outside its row must be before the janitor deletes it because
	// no row refers to it. Storing a message may take half as long. Defaults to 1 hour.
	BlobGrace time.Duration

	// Observers get the events of the Store; see [Observer].
	Observers []Observer
}

func (c *Config) setDefaults() {
	if c.TablePrefix == "" {
		c.TablePrefix = dialect.DefaultPrefix
	}
	if c.Process == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Process = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if c.Version == "" {
		recorded := build.Read().Release()
		c.Version = recorded[:min(len(recorded), maxName)]
	}
	if c.SettledKeys == 0 {
		c.SettledKeys = 100_000
	}
	if c.PurgeInterval == 0 {
		c.PurgeInterval = time.Minute
	}
	if c.RedispatchAfter == 0 {
		c.RedispatchAfter = 5 * time.Minute
	}
	if c.BlobsAbove == 0 && c.Blobs != nil {
		c.BlobsAbove = 65_536
	}
	if c.BlobGrace == 0 {
		c.BlobGrace = time.Hour
	}
}

func (c *Config) names() dialect.Names {
	return dialect.Names{Schema: c.Schema, Prefix: c.TablePrefix}
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	c.setDefaults()
	problems := c.names().Problems(c.Dialect)
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if len(c.Namespace) > maxName {
		problem("Namespace is longer than %d bytes", maxName)
	}
	if len(c.Process) > maxName {
		problem("Process is longer than %d bytes", maxName)
	}
	if len(c.Version) > maxName {
		problem("Version is longer than %d bytes", maxName)
	}
	if c.MaxInFlight < 0 {
		problem("MaxInFlight %d is negative", c.MaxInFlight)
	}
	if c.SettledKeys < 0 {
		problem("SettledKeys %d is negative", c.SettledKeys)
	}
	if c.PurgeInterval < 0 {
		problem("PurgeInterval %v is negative", c.PurgeInterval)
	}
	if c.RedispatchAfter < 0 {
		problem("RedispatchAfter %v is negative", c.RedispatchAfter)
	}
	if c.BlobsAbove < 0 {
		problem("BlobsAbove %d is negative", c.BlobsAbove)
	}
	if c.BlobGrace < 0 {
		problem("BlobGrace %v is negative", c.BlobGrace)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("inbox: invalid Config: %w", err)
	}
	return nil
}

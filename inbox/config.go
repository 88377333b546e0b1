package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/internal/dialect"
)

// What settings and steps are bounded by.
const (
	// Forever is the retention that keeps what was seen until the end of time.
	Forever time.Duration = -1

	// MinRetention is the shortest time a claim may be kept: messages younger than that are
	// never suspected of being older than what is still remembered.
	MinRetention = time.Hour

	// MaxStepResult is how many bytes a step may return: what is needed to go on, such as the
	// provider's id of what was done.
	MaxStepResult = 65_536
)

// Config is how a [Store] behaves. The zero value is right for most services.
type Config struct {
	// Logger hears every decision a person may ask about. What it panics with is not said, and
	// counted by [Store.Panics]. Defaults to the logger of the first router whose plugin starts the Store;
	// until then nothing is logged.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres", "mysql" (and MariaDB) or "sqlite". Defaults to
	// what the driver, or else the server, says.
	Dialect string

	// Schema is the PostgreSQL schema of the tables. Defaults to the connection's search path.
	Schema string

	// TablePrefix starts every table's name. Defaults to "millrace_".
	TablePrefix string

	// Namespace keeps the consumers of services apart that share one set of tables: two
	// services with a handler of one name need two namespaces. Defaults to none.
	Namespace string

	// MaxInFlight bounds the transactions open at once, over all consumers of the store.
	// Defaults to the pool's size less one, so that a flood leaves a connection for the rest
	// of the service, or 32 where the pool has no bound. SQLite always has one.
	MaxInFlight int

	// SettledKeys is how many keys known to be settled are remembered in memory, where a
	// duplicate of them costs nothing. Defaults to 100,000, which takes some 15 MB.
	SettledKeys int

	// WithoutPlugin lets routers without [Store.Plugin] use the Store. Otherwise their messages
	// are refused with [ErrNoPlugin]: without the plugin nobody notices that a Retry inside the
	// inbox, or another middleware that hides a failure, has the effects of a failed run committed.
	// [Store.Run] does the background work of the plugin, and not that.
	WithoutPlugin bool

	// LogDropped keeps a row for each copy that was acked without running the handler, so
	// that admin.Admin.Story can show it; the row lives as long as the default retention.
	LogDropped bool

	// PurgeInterval is the pause between two looks at what has expired. Defaults to 1 minute;
	// a consumer's claims are walked once in a hundredth of its retention at most.
	PurgeInterval time.Duration

	// AllowPayloadChange lets operators correct what is stored, with admin.Admin.ReplacePayload.
	AllowPayloadChange bool

	// Position says where the source of a message keeps it, such as Kafka's partition and offset, for whoever looks
	// at a stored message or, with LogDropped, at a copy. Where it returns an error or panics, or the partition is no
	// number, that is not known, as without it.
	Position func(*message.Message) (Position, error)

	// Archive is given completed claims before they are deleted; an error keeps them. What it
	// writes through inbox.Tx is committed with the deletion; elsewhere a claim can be given twice.
	// A panic is an error.
	Archive func(ctx context.Context, claims []ExpiredClaim) error

	// Redispatch publishes outcomes that the broker never asked for again, RedispatchAfter
	// (default 5 minutes) after they were stored. Without it they are only listed, by
	// admin.Admin.Unsettled, and logged. A panic of Redispatch is an error.
	Redispatch      message.Publisher
	RedispatchAfter time.Duration

	// Payloads changes what is stored of messages, open ones and those a handler produced, for
	// instance to encrypt it. Defaults to storing payloads as they came.
	Payloads payload.Codec

	// BlobsAbove is the size in bytes above which the payload of an open message is kept outside
	// its row: in Blobs, or without it in a table of its own. Defaults to 65,536 with Blobs, and
	// to keeping every payload in its row without.
	BlobsAbove int
	Blobs      payload.Blobs

	// BlobGrace is how old a payload outside its row must be before it is removed because no
	// row refers to it. Storing a message may take half as long. Defaults to 1 hour.
	BlobGrace time.Duration

	// Observers are told of decisions; see [Observer].
	Observers []Observer
}

func (c *Config) setDefaults() {
	if c.TablePrefix == "" {
		c.TablePrefix = dialect.DefaultPrefix
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

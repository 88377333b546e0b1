package outbox

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/steady"
)

// Config is how a [Publisher] behaves. The zero value is right for most services.
type Config struct {
	// Logger gets what cannot be returned as an error. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Dialect names the database: "postgres", "mysql" (also for MariaDB) or "sqlite". Defaults
	// to what the driver, or else the server, says.
	Dialect string

	// Schema is the PostgreSQL schema of the tables. Defaults to the connection's search path. Set it, as in
	// inbox.Config, where anything changes the search path, such as a handler or OnBegin.
	Schema string

	// TablePrefix starts every table's name. Defaults to "millrace_".
	TablePrefix string

	// OrderKey gives each message's order key. Messages with the same key reach the broker in
	// order; an empty key means no order. See [ByMetadata] and [ByTopic]. Defaults to no order,
	// which is the fastest, and in which a message that fails holds back no other.
	OrderKey KeyFunc

	// Stamp says which version of which aggregate a message brings, unless [Stamp] or
	// [Marshaler] has stamped the message. OrderKey sees the stamp. Defaults to none.
	Stamp StampFunc

	// Describe gives the event type stored beside a message, for people and for Debezium.
	// Defaults to the metadata field "name", which Watermill's CQRS sets, or else "ce_type".
	Describe func(msg *message.Message) (eventType string)

	// Standalone stores messages whose context carries no transaction in one of their own. By
	// default Publish refuses such a message with [ErrNoTx]: it would be sent even if the work
	// that it announces is rolled back.
	Standalone bool

	// AfterCommit is called after each commit of this module that stored messages. Relays on
	// the same pool are woken without it; set it to [Relay.Wake] where the relay has another
	// pool. A panic in it is logged and undoes nothing.
	AfterCommit func()
}

// KeyFunc gives the order key of a message published to topic, or "" for none.
type KeyFunc func(topic string, msg *message.Message) (string, error)

// ByMetadata takes the order key from a metadata field. Messages without it have no order.
func ByMetadata(field string) KeyFunc {
	if field == "" { // else nothing would be in order, and nothing would say so
		return func(string, *message.Message) (string, error) {
			return "", errors.New("outbox.ByMetadata was given no field")
		}
	}
	return func(_ string, msg *message.Message) (string, error) { return msg.Metadata.Get(field), nil }
}

// ByTopic keeps all messages of a topic in order. They then go out one at a time.
func ByTopic() KeyFunc {
	return func(topic string, _ *message.Message) (string, error) { return topic, nil }
}

func (c *Config) setDefaults() {
	c.Logger = steady.Default(c.Logger)
	if c.TablePrefix == "" {
		c.TablePrefix = dialect.DefaultPrefix
	}
	if c.Describe == nil {
		c.Describe = describe
	}
	if c.AfterCommit == nil {
		c.AfterCommit = func() {}
	}
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	c.setDefaults()
	if err := errors.Join(names(c.Schema, c.TablePrefix).Problems(c.Dialect)...); err != nil {
		return fmt.Errorf("outbox: invalid Config: %w", err)
	}
	return nil
}

func names(schema, prefix string) dialect.Names { return dialect.Names{Schema: schema, Prefix: prefix} }

func describe(msg *message.Message) string {
	if name := msg.Metadata.Get("name"); name != "" {
		return name
	}
	return msg.Metadata.Get("ce_type")
}

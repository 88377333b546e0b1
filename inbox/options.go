package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// Options are the settings of a consumer that most do without; the zero value is right for them. They are part of
// middleware.Inbox and of [ConsumerConfig]. Where one of their functions panics, that is like a panic of
// the handler, but for Key and Fingerprint, whose message is kept for an operator.
type Options struct {
	// Which deliveries are the same message.

	// Epoch is raised to handle everything again on purpose: what was seen in an earlier
	// epoch does not count. Defaults to 0.
	Epoch int

	// FormerKey is what Key was in the epoch before, where Key is another one now and Epoch is raised by one: what was
	// handled under it is not handled again. Leave it out once Retention has passed. With a
	// VersionGate it is refused.
	FormerKey Key

	// OnCollision is what happens to a message with the key, but not the payload, of another
	// one. Defaults to parking it where the key is the message's own id, and to dropping it
	// where it is a business key.
	OnCollision OnCollision

	// Fingerprint is what two messages with one key are compared by. A message of which it, or Key,
	// fails or panics is kept for an operator. Defaults to the payload.
	Fingerprint func(msg *message.Message) ([]byte, error)

	// How long a message is remembered.

	// Retention is how long a handled message is remembered. At least an hour, or inbox.Forever.
	// Defaults to 7 days; take twice the longest time after which a broker may redeliver.
	Retention time.Duration

	// Window is the longest time after which a message may come again: the broker's
	// retention, a dead-letter queue's age. A Retention below twice as much is warned of.
	Window time.Duration

	// MessageTime says when a message was made, if it tells: one older than what is still
	// remembered is parked. The zero time is none. Defaults to the metadata fields ce_time and publishTime.
	MessageTime func(msg *message.Message) (made time.Time, known bool)

	// ClockSkew is how far the clocks of producers may be ahead. Defaults to 5 minutes.
	ClockSkew time.Duration

	// What a delivery waits for.

	// TwinWait bounds how long a copy waits for another process that handles the message, and, at a
	// VersionGate, a message for one that works on its aggregate; then it is nacked with
	// inbox.ErrInProgress, which is no attempt. Defaults to 5 seconds: long enough for most
	// handlers, short enough that waiting copies do not hold connections for long.
	TwinWait time.Duration

	// MaxInFlight bounds how many transactions this handler has open at once; the rest wait in
	// memory. Defaults to no bound of its own: inbox.Config.MaxInFlight bounds all together.
	MaxInFlight int

	// Redelivered says that a message was delivered before, as a hint to look it up before
	// claiming it. Defaults to the marks that pubsub/rabbitmq and watermill-amqp v3 set.
	Redelivered func(msg *message.Message) bool

	// What runs around the handler.

	// Before runs before the transaction of each message begins, unless the message was handled
	// or is parked: for what must not hold a transaction, such as an inbox.Step, whose result the
	// handler then has from inbox.Once. It holds no connection, and copies in this process wait. Its
	// error is a failure of the message. It may run again, for a message that then fails; with a
	// VersionGate it is refused.
	Before func(msg *message.Message) error

	// BeforeTimeout bounds Before. Defaults to Timeout; the two together should be below the
	// time after which the broker gives a message to someone else.
	BeforeTimeout time.Duration

	// OnBegin runs first in each handler's transaction, for instance to set a tenant.
	OnBegin func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error

	// RequireTx refuses a success of a handler that neither took inbox.Tx nor produced
	// messages, with inbox.ErrTxNotUsed. It is for handlers whose effects are all in the transaction: each redelivery
	// after a refusal repeats those that are not. By default it is warned about once and counted.
	RequireTx bool

	// What is kept of a message, and what a replay does.

	// RecordFailures keeps a failed message whole, with attempts and last error, until it
	// succeeds. By default the broker alone remembers it. Behind pubsub.Durable, which does so,
	// it changes nothing.
	RecordFailures bool

	// Describe gives the event type and version stored with open messages. Defaults to the
	// metadata field name of Watermill's CQRS, else ce_type, and to ce_dataschema.
	Describe func(msg *message.Message) (eventType, eventVersion string)

	// OnReplay is what happens to a replayed message, which bears the metadata field
	// inbox.ReplayField. Defaults to inbox.ReplayAllow: it is treated like any delivery. A
	// consumer with effects outside of its transaction should have inbox.ReplayRefuse.
	OnReplay ReplayRule

	// Journal keeps each completed message whole, as long as its claim, so that package replay
	// can give it to a handler again. By default a completed message is its claim alone, and the
	// transaction one INSERT shorter.
	Journal bool
}

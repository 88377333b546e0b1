package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
)

// Options are the settings that most consumers leave at their zero value. They are part of middleware.Inbox and
// of [ConsumerConfig]. A panic in one of their functions is like a panic of the handler, except that the inbox
// keeps the message for an operator if Key or Fingerprint panics.
type Options struct {
	// Which deliveries are the same message.

	// Epoch is raised to handle everything again on purpose: messages handled in an earlier epoch
	// do not count as handled. Defaults to 0.
	Epoch int

	// FormerKey is the Key of the epoch before, if Key has changed and Epoch was raised by one:
	// messages handled under it are not handled again. Remove it once Retention has passed, and no
	// message is open that was stored before: without it, their steps are done again. A VersionGate refuses it.
	FormerKey Key

	// OnCollision is what happens to a message with the key, but not the payload, of another
	// one. Defaults to parking it where the key is the message's own id, and to dropping it
	// where it is a business key.
	OnCollision OnCollision

	// Fingerprint returns the bytes by which two messages with one key are compared. If it or Key
	// fails or panics for a message, the inbox keeps the message for an operator. Defaults to the
	// payload.
	Fingerprint func(msg *message.Message) ([]byte, error)

	// How long a message is remembered.

	// Retention is how long a handled message is remembered. At least an hour, or inbox.Forever.
	// Defaults to 7 days; take twice the longest time after which a broker may redeliver.
	Retention time.Duration

	// Window is the longest time after which a message may be redelivered: the broker's retention,
	// a dead-letter queue's age. The Store warns if Retention is below twice as much.
	Window time.Duration

	// MessageTime returns when a message was made, if known. The inbox parks a message that is so old
	// that its claim may have been deleted. A zero time means not known. Defaults to the metadata
	// fields ce_time and publishTime.
	MessageTime func(msg *message.Message) (made time.Time, known bool)

	// ClockSkew is how far the clocks of producers may be ahead. Defaults to 5 minutes.
	ClockSkew time.Duration

	// What a delivery waits for.

	// TwinWait bounds how long a copy waits for another process that handles the message, and how
	// long, at a VersionGate, a message waits for another process that works on its aggregate. Then the
	// inbox nacks it with inbox.ErrInProgress, which is no attempt. Defaults to 5 seconds: long enough
	// for most handlers, short enough that waiting copies do not hold connections for long.
	TwinWait time.Duration

	// MaxInFlight bounds how many transactions this handler has open at once; the rest wait in
	// memory. Defaults to no bound of its own: inbox.Config.MaxInFlight bounds all together.
	MaxInFlight int

	// Redelivered reports whether a message was delivered before. It is a hint: the inbox then looks
	// the message up before it claims it. Defaults to the marks that pubsub/rabbitmq and
	// watermill-amqp v3 set.
	Redelivered func(msg *message.Message) bool

	// What runs around the handler.

	// Before runs before the transaction of each message begins, unless the message was handled or
	// is parked. It is for work that must not hold a transaction, such as an inbox.Step, whose result
	// the handler then gets from inbox.Once. It holds no connection, and copies in this process wait.
	// An error of Before fails the message. Before runs again for each new attempt. A VersionGate
	// refuses it.
	Before func(msg *message.Message) error

	// BeforeTimeout bounds Before. Defaults to Timeout; the two together should be below the
	// time after which the broker gives a message to another process.
	BeforeTimeout time.Duration

	// OnBegin runs first in each handler's transaction, for instance to set a tenant. It runs for a
	// message that a VersionGate then holds or parks, too, whose transaction is committed, and again
	// when that message is handled: set up the transaction here, and let the handler write. Settings must end with
	// the transaction, as those of SET LOCAL do. For a search path set [Config.Schema], and never send USE.
	OnBegin func(ctx context.Context, tx *sqlx.Tx, msg *message.Message) error

	// RequireTx refuses a success of a handler that neither took inbox.Tx nor produced messages, with
	// inbox.ErrTxNotUsed. It is for handlers whose effects are all in the transaction: each redelivery
	// after a refusal repeats the others. By default it is warned about once and counted.
	RequireTx bool

	// What is stored of a message, and what a replay does.

	// RecordFailures stores a failed message whole, with attempts and last error, until it
	// succeeds. By default the broker alone remembers it. Behind pubsub.Durable, which stores
	// failed messages itself, it changes nothing.
	RecordFailures bool

	// Describe returns the event type and version to store with open messages. Defaults to the
	// metadata field name of Watermill's CQRS, else ce_type, and to ce_dataschema.
	Describe func(msg *message.Message) (eventType, eventVersion string)

	// OnReplay is what happens to a replayed message, which has the metadata field
	// inbox.ReplayField. Defaults to inbox.ReplayAllow: it is treated like any delivery. A
	// consumer with effects outside its transaction should have inbox.ReplayRefuse.
	OnReplay ReplayRule

	// Journal stores each completed message whole, as long as its claim, so that package replay
	// can give it to a handler again. By default a completed message is its claim alone, and the
	// transaction one INSERT shorter.
	Journal bool
}

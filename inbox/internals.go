package inbox

import (
	"context"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/ambient"
	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/stored"
)

// Internals are the functions that other packages of Millrace need, and services do not. Most work
// on a running Store, and take and return types of internal packages. Those that work on a context, a
// message or a key are methods of the zero value, too.
type Internals struct{ store *Store }

// Internals returns the functions of s for other packages of Millrace.
func (s *Store) Internals() Internals { return Internals{s} }

// Rows returns the stored rows of the namespace.
func (i Internals) Rows() *stored.Rows { return &i.store.rows }

// Payload returns the payload of a stored message with this metadata, as it arrived.
func (i Internals) Payload(ctx context.Context, row *stored.Message, metadata message.Metadata) ([]byte, error) {
	return i.store.openPayload(ctx, row, metadata)
}

// Unopenable reports whether err says that nobody can ever open a payload again.
func (i Internals) Unopenable(err error) bool { return unopenable(err) }

// Outcome returns the messages of a stored outcome and, for each, why it has no payload.
func (i Internals) Outcome(
	ctx context.Context, consumer, topic string, kept []byte,
) (msgs []*message.Message, problems []error, err error) {
	return i.store.decodeOutcome(ctx, consumer, topic, kept)
}

// Publishable returns the messages of a stored outcome that can be published.
func (i Internals) Publishable(ctx context.Context, consumer, topic string, kept []byte) ([]*message.Message, error) {
	return i.store.openOutcome(ctx, consumer, topic, kept)
}

// OutcomeOutline returns the messages of a stored outcome without their payloads.
func (i Internals) OutcomeOutline(kept []byte) ([]*message.Message, error) {
	return outlineOutcome(kept)
}

// Unsettled lists the oldest outcomes that f selects, at most limit of them, without their messages.
func (i Internals) Unsettled(ctx context.Context, f stored.UnsettledFilter, limit int) ([]stored.Unsettled, error) {
	return i.store.listUnsettled(ctx, f, 0, limit)
}

// KeptOutcome returns the messages of an outcome of Unsettled as they are stored, and [ErrNotFound] if it was settled since.
func (i Internals) KeptOutcome(ctx context.Context, o stored.Unsettled) ([]byte, error) {
	return i.store.keptOutcome(ctx, o)
}

// EachUnsettled reads the oldest outcomes that f selects one by one, and calls do with each that can be published, at most
// limit of them, until do returns an error. do says whether its outcome stays. The error names those that cannot be read.
func (i Internals) EachUnsettled(
	ctx context.Context, f stored.UnsettledFilter, limit int, do func(stored.Unsettled) (stays bool, err error),
) error {
	return i.store.eachUnsettled(ctx, f, limit, do)
}

// DeleteOutcome settles an outcome in tx, and reports whether nobody had settled it before.
func (i Internals) DeleteOutcome(ctx context.Context, tx *sqlx.Tx, consumer int32, id []byte) (fresh bool, err error) {
	query, args, err := i.store.dialect.In(i.store.dialect.DeleteOutcomes, consumer, [][]byte{id})
	if err != nil {
		return false, err
	}
	n, err := database.Affected(tx.ExecContext(ctx, query, args...))
	return n == 1, err
}

// Refuse returns a handler that fails with err, after pauses: many sources redeliver at once what is nacked. In the
// transaction of a claim, the claim pauses once that is rolled back. Otherwise no handler runs, and to a queue it is no
// attempt; a queue that delivers from its table has pauses of its own.
func (Internals) Refuse(err error) message.HandlerFunc {
	var p pace
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if cl := claimOf(msg); cl != nil {
			cl.unserved = true
			return nil, err
		}
		tx := ambient.From(ctx)
		foreign := tx != nil && carried(tx, msg) // then the attempt in ctx is that of another message, too
		if a := deliveredBy(ctx); a != nil && !foreign {
			a.interrupted(err)
		}
		if foreign || leasedOf(ctx) == nil {
			p.wait(ctx)
		}
		return nil, err
	}
}

// Result returns the result of [SetResult] that is kept for a consumer.
func (i Internals) Result(ctx context.Context, consumer string, kept []byte) (json.RawMessage, error) {
	return i.store.openResult(ctx, consumer, kept)
}

// StepResult returns the result of a step.
func (i Internals) StepResult(ctx context.Context, row *stored.Step) ([]byte, error) {
	return i.store.openStep(ctx, row)
}

// MayReplace reports whether Config.AllowPayloadChange is set.
func (i Internals) MayReplace() bool { return i.store.config.AllowPayloadChange }

// Hash returns the hash that the consumer of row would store with msg.
func (i Internals) Hash(row *stored.Message, msg *message.Message) (int64, error) {
	return i.store.hash(row, msg)
}

// Replace gives row the payload of msg, if the stored row is unchanged since row was read.
func (i Internals) Replace(
	ctx context.Context, tx *sqlx.Tx, by stored.Operator, row *stored.Message, msg *message.Message, hash int64,
) error {
	return i.store.replaceIn(ctx, tx, by, row, msg, hash)
}

// Wake has the queue of a consumer look for due messages at once.
func (i Internals) Wake(name stored.Name) { i.store.wakeQueue(name) }

// PauseChanged has the queue of a consumer look at once whether it is paused.
func (i Internals) PauseChanged(name stored.Name) {
	i.store.pauses.Add(1)
	i.store.wakeQueue(name)
}

// Release makes those messages due that wait for v, or for an older version of its aggregate, which is stored
// under this id.
func (i Internals) Release(ctx context.Context, tx *sqlx.Tx, consumer int32, aggregate []byte, v Version) error {
	_, err := i.store.releaseHeld(ctx, tx, consumer, versioned{v, aggregate}, following(v.Number))
	return err
}

// Advanced wakes, after the commit, the messages and the queue that wait for a version of the aggregate that is
// stored under this id.
func (i Internals) Advanced(name stored.Name, aggregate []byte, version int64) {
	i.store.mu.Lock()
	c := i.store.consumers[name]
	i.store.mu.Unlock()
	if c != nil {
		c.early.tell(c.prefix+string(aggregate), version)
	}
	i.store.wakeQueue(name)
}

// Decided logs an operator's decision, which the audit table keeps.
func (i Internals) Decided(by stored.Operator, action string, about watermill.LogFields) {
	i.store.log.Info("inbox: an operator decided", about.Add(watermill.LogFields{
		"operator": by.Name, "action": action, "reason": by.Reason,
	}))
}

// Settings returns config with its defaults.
func (i Internals) Settings(config ConsumerConfig) ConsumerConfig {
	config.setDefaults()
	return config
}

// KeyOf returns the key that a consumer with k gives to msg.
func (i Internals) KeyOf(k Key, msg *message.Message) (string, error) { return k.find(msg) }

// KeyOfParts returns the key that a consumer with k would make of these parts.
func (i Internals) KeyOfParts(k Key, parts []string) (string, error) { return k.made(parts) }

// KeySource returns the stored description of k, which tells it from other keys.
func (i Internals) KeySource(k Key) string { return k.source }

// Find returns the row of the consumer that config names, and an error if it has another key. A consumer
// without a row has the ID 0.
func (i Internals) Find(ctx context.Context, config ConsumerConfig) (stored.Consumer, error) {
	return i.store.rows.Registered(config.self()).Known(ctx)
}

// Register returns the number of the consumer that config names. It inserts the consumer's row if
// there is none.
func (i Internals) Register(ctx context.Context, config ConsumerConfig) (int32, error) {
	reg, err := i.store.rows.Registered(config.self()).Row(ctx)
	return reg.ID, err
}

// NewGate returns a function that lets the messages of each aggregate through in the order of their
// versions. All problems of config are reported at once.
func (Internals) NewGate(config GateConfig) (admit func(*message.Message) (run bool, err error), err error) {
	g, err := newGate(config)
	if err != nil {
		return nil, err
	}
	return g.Admit, nil
}

// AwaitAnswer has [Store.Close] wait until answered is called, once the answer to a stored message that goes to its
// handler is recorded. If the Store is closed already, answered is nil.
func (i Internals) AwaitAnswer() (answered func()) { return i.store.work.enterStored() }

// Claimed reports whether the handler of msg runs in the transaction of its claim.
func (Internals) Claimed(msg *message.Message) bool { return claimOf(msg) != nil }

// Leased returns the row of the message of ctx, if pubsub.Durable delivers it from its table, and nil if not. Each
// delivery has a row of its own.
func (Internals) Leased(ctx context.Context) *stored.Message {
	if l := leasedOf(ctx); l != nil {
		return &l.row
	}
	return nil
}

// StoredFor returns the consumer for which pubsub.Durable stored the message of ctx, or "" if it did
// not. A message that a router's subscriber decorator delivers does not know its handler.
func (Internals) StoredFor(ctx context.Context) string {
	if l := leasedOf(ctx); l != nil {
		return l.queue.name.Name
	}
	return ""
}

// StepNames returns the names that [WithStep] gave ctx, the outermost first.
func (Internals) StepNames(ctx context.Context) []string { return stepNames(ctx) }

// Redelivered reports whether a message is marked as delivered before, by watermill-amqp v3
// or pubsub/rabbitmq.
func (Internals) Redelivered(msg *message.Message) bool { return redelivered(msg) }

// ParseKey returns the key that [Key.String] describes as description. If a function of the service
// makes the key, as with [ByFunc] and [ByPosition], the returned key fails for every message.
func (Internals) ParseKey(description string) (Key, error) { return parseKey(description) }

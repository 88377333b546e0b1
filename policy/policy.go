package policy

// Policy holds the rules for the handlers of a router.
type Policy struct {
	// Strict refuses every handler that Consumers does not name. By default Defaults apply to those
	// handlers.
	Strict bool `yaml:"strict"`

	// Defaults fill in, field by field, whatever a consumer leaves out.
	Defaults Rules `yaml:"defaults"`

	// Consumers holds the rules of each handler, under the handler's name in the router.
	Consumers map[string]Rules `yaml:"consumers"`

	from *origin
}

// Rules are the settings of one consumer. If a consumer leaves a field out, the field of Defaults
// applies; if Defaults leave it out too, the default of the middleware that uses it.
type Rules struct {
	// Strategy chooses the middlewares around the handler. Defaults to inbox.
	Strategy Strategy `yaml:"strategy"`

	// Shadow enforces nothing: every delivery runs the handler, and Wired.Shadow reports what the
	// rules would have done. A handler that needs the inbox's transaction fails in shadow mode.
	Shadow bool `yaml:"shadow"`

	// Store names one of Wiring.Stores. Defaults to Wiring.Store.
	Store string `yaml:"store"`

	// Consumer is the name under which the store remembers messages. Defaults to the handler's
	// name.
	Consumer string `yaml:"consumer"`

	// Epoch is a number. Raise it to handle everything again on purpose.
	Epoch int `yaml:"epoch"`

	// Key says which deliveries are the same message. Defaults to uuid.
	Key Key `yaml:"key"`

	// FormerKey is the Key of the epoch before: messages that were handled under it are not handled
	// again. Leave it out once Retention has passed, and no message is open that was stored before:
	// without it, their steps are done again.
	FormerKey Key `yaml:"former_key"`

	// Version says where the version of a message comes from and how gaps are treated, for
	// strategies gate and latest.
	Version Version `yaml:"version"`

	// Retention is how long the store remembers a handled message.
	Retention Duration `yaml:"retention"`

	// Window is the longest time after which the source may deliver a message again or an operator
	// may replay it. A Retention below Window is refused.
	Window Duration `yaml:"window"`

	// Ack says when the source is told that it may forget a message. Defaults to commit.
	Ack Ack `yaml:"ack"`

	// Timeout is the longest that the handler may run.
	Timeout Duration `yaml:"timeout"`

	// Retry says how the durable queue tries a failed message again.
	Retry Retry `yaml:"retry"`

	// OrderKey groups messages that must be handled one after another: those with the same order
	// key. It is written like Key.From and needs Ack: stored.
	OrderKey string `yaml:"order_key"`

	// OnParked says what happens to the messages behind a parked message of the same order key.
	// Defaults to hold.
	OnParked OnParked `yaml:"on_parked"`

	// Collision says what happens to a message that has the key, but not the payload, of another
	// message.
	Collision Collision `yaml:"collision"`

	// Replay says what happens to a replayed message. Defaults to allow, and to refuse if
	// SideEffects is accept-duplicates.
	Replay Replay `yaml:"replay"`

	// Batch bounds the batches of a handler that Wired.AddBatchHandler adds.
	Batch Batch `yaml:"batch"`

	// Journal keeps handled messages whole for as long as the store remembers them, so that an
	// operator can replay them.
	Journal bool `yaml:"journal"`

	// SideEffects says what keeps the handler's effects outside the database from happening twice.
	// Defaults to none: the handler has no such effects.
	SideEffects SideEffects `yaml:"side_effects"`

	// Alerts are the thresholds of the consumer's alert rules.
	Alerts Alerts `yaml:"alerts"`
}

// Key says which deliveries are the same message.
type Key struct {
	// From is uuid, payload, cloudevent, metadata:FIELD, json:PATH, or func:NAME, which names one
	// of Wiring.Keys. Parts joined with + form one key together.
	From string `yaml:"from"`

	// Optional uses the message's UUID if From finds nothing. By default such a message fails.
	Optional bool `yaml:"optional"`

	// Within is topic or type, for a key that is unique only within one topic or one event type.
	Within string `yaml:"within"`
}

// Version says where the version of a message comes from and how gaps are treated.
type Version struct {
	// From is metadata, cloudevent, json:AGGREGATE,VERSION, or func:NAME, which names one of
	// Wiring.Versions. Defaults to metadata, where the outbox stamps versions.
	From string `yaml:"from"`

	// Sequence is required or optional: whether every message must have a version. Defaults to
	// required: a message without a version fails for good.
	Sequence Sequence `yaml:"sequence"`

	// OnGap is hold or fail: what happens to a message that comes before its predecessor. Defaults
	// to hold. Strategy latest has no gaps.
	OnGap OnGap `yaml:"on_gap"`

	// GapFor is how long a gap may last with on_gap: fail, while the message goes back to its
	// source.
	GapFor Duration `yaml:"gap_for"`

	// First is one, zero or seen: the version at which an aggregate begins. Defaults to one.
	First First `yaml:"first"`

	// MaxHeld and HeldFor limit how many messages of an aggregate are held, and for how long.
	MaxHeld int      `yaml:"max_held"`
	HeldFor Duration `yaml:"held_for"`
}

// Retry says how a failed message is tried again.
type Retry struct {
	// Attempts is how often a message may fail before it is parked.
	Attempts int `yaml:"attempts"`

	// Backoff is the shortest and MaxBackoff the longest pause after a failure. The pause grows
	// with each failure.
	Backoff    Duration `yaml:"backoff"`
	MaxBackoff Duration `yaml:"max_backoff"`
}

// Batch bounds how many messages are handled in one transaction.
type Batch struct {
	// Max is the greatest number of messages in a batch.
	Max int `yaml:"max"`

	// MaxBytes is the greatest size of a batch: of the payloads together.
	MaxBytes int `yaml:"max_bytes"`

	// Linger is how long the first message of a batch waits for others.
	Linger Duration `yaml:"linger"`
}

// Alerts are thresholds. A threshold of 0 makes no rule.
type Alerts struct {
	// PendingAge is the greatest age of a stored message that waits to be handled.
	PendingAge Duration `yaml:"pending_age"`

	// HeldAge is how long a message may be held for its predecessor.
	HeldAge Duration `yaml:"held_age"`

	// Parked is how many messages may be parked.
	Parked *int `yaml:"parked"`

	// Duplicates is the share of deliveries that may be duplicates, between 0 and 1.
	Duplicates float64 `yaml:"duplicates"`

	// Gaps is the share of deliveries that may come before their predecessor is applied, between 0
	// and 1.
	Gaps float64 `yaml:"gaps"`

	// Failures is the share of handler runs that may fail, between 0 and 1.
	Failures float64 `yaml:"failures"`
}

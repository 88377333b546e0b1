package policy

// Policy is what applies to the handlers of a router.
type Policy struct {
	// Strict refuses handlers that Consumers does not name. By default Defaults apply to them.
	Strict bool `yaml:"strict"`

	// Defaults apply wherever a consumer says nothing, field by field.
	Defaults Rules `yaml:"defaults"`

	// Consumers has the rules of each handler, by the name that it has in the router.
	Consumers map[string]Rules `yaml:"consumers"`

	from *origin
}

// Rules are what applies to one consumer. A field that is left out is that of Defaults, and
// where that has none either, the default of the middleware that it sets.
type Rules struct {
	// Strategy says which middlewares stand around the handler. Defaults to inbox.
	Strategy Strategy `yaml:"strategy"`

	// Shadow enforces nothing: each delivery runs the handler, and Wired.Shadow reports what the
	// rules would have seen. A handler that needs the inbox's transaction fails without it.
	Shadow bool `yaml:"shadow"`

	// Store names one of Wiring.Stores. Defaults to the one without a name.
	Store string `yaml:"store"`

	// Consumer is the name under which messages are remembered. Defaults to the handler's.
	Consumer string `yaml:"consumer"`

	// Epoch is raised to handle everything again on purpose.
	Epoch int `yaml:"epoch"`

	// Key says which deliveries are the same message. Defaults to uuid.
	Key Key `yaml:"key"`

	// FormerKey is what Key was in the epoch before: what was handled under it is not handled again. Leave it
	// out once Retention has passed.
	FormerKey Key `yaml:"former_key"`

	// Version says in which order the messages of an aggregate apply: for gate and latest.
	Version Version `yaml:"version"`

	// Retention is how long a handled message is remembered.
	Retention Duration `yaml:"retention"`

	// Window is the longest time after which a message may be delivered again or replayed. A
	// Retention below it is refused.
	Window Duration `yaml:"window"`

	// Ack says when the source is told that it may forget a message. Defaults to commit.
	Ack Ack `yaml:"ack"`

	// Timeout bounds the handler.
	Timeout Duration `yaml:"timeout"`

	// Retry is how a failed message is tried again, from the durable queue.
	Retry Retry `yaml:"retry"`

	// OrderKey names what messages are to be handled one after another: those with one key. It
	// is written like Key.From and needs Ack: stored.
	OrderKey string `yaml:"order_key"`

	// OnParked says what happens behind a parked message of an order key. Defaults to hold.
	OnParked OnParked `yaml:"on_parked"`

	// Collision is what happens to a message with the key, but not the payload, of another.
	Collision Collision `yaml:"collision"`

	// Replay is what happens to a replayed message. Defaults to allow, and to refuse where
	// SideEffects is accept-duplicates.
	Replay Replay `yaml:"replay"`

	// Journal keeps handled messages whole for as long as they are remembered, so that they can be
	// replayed.
	Journal bool `yaml:"journal"`

	// SideEffects says how the handler's effects outside the database are kept from happening
	// twice. Defaults to none: there are no such effects.
	SideEffects SideEffects `yaml:"side_effects"`

	// Alerts are the thresholds of the consumer's alert rules.
	Alerts Alerts `yaml:"alerts"`
}

// Key says which deliveries are the same message.
type Key struct {
	// From is uuid, payload, cloudevent, metadata:FIELD, json:PATH, or func:NAME, one of
	// Wiring.Keys. Several with + between them count together.
	From string `yaml:"from"`

	// Optional takes the message's UUID where From finds nothing. By default such a message fails.
	Optional bool `yaml:"optional"`

	// Within is topic or type, where the key says nothing by itself across those.
	Within string `yaml:"within"`
}

// Version says in which order the messages of an aggregate apply.
type Version struct {
	// From is metadata, cloudevent, json:AGGREGATE,VERSION, or func:NAME, one of
	// Wiring.Versions. Defaults to metadata: what the outbox stamps.
	From string `yaml:"from"`

	// Sequence is required or optional: what becomes of a message without a version. Defaults
	// to required: it fails for good.
	Sequence Sequence `yaml:"sequence"`

	// OnGap is hold or fail. Defaults to hold. Strategy latest has no gaps.
	OnGap OnGap `yaml:"on_gap"`

	// GapWait is how long a message waits in memory for its predecessor first.
	GapWait Duration `yaml:"gap_wait"`

	// GapFor is how long a gap may last with on_gap: fail, while a message goes back to its source.
	GapFor Duration `yaml:"gap_for"`

	// First is one, zero or seen: the version at which an aggregate begins. Defaults to one.
	First First `yaml:"first"`

	// MaxHeld and HeldFor bound how many messages of an aggregate wait, and how long.
	MaxHeld int      `yaml:"max_held"`
	HeldFor Duration `yaml:"held_for"`
}

// Retry is how a failed message is tried again.
type Retry struct {
	// Attempts is how often a message may fail before it is parked.
	Attempts int `yaml:"attempts"`

	// Backoff and MaxBackoff bound the pause after a failure, which grows with each.
	Backoff    Duration `yaml:"backoff"`
	MaxBackoff Duration `yaml:"max_backoff"`
}

// Alerts are thresholds. One that is 0 makes no rule.
type Alerts struct {
	// PendingAge is how old the oldest message may be that waits to be handled.
	PendingAge Duration `yaml:"pending_age"`

	// HeldAge is how long a message may wait for its predecessor.
	HeldAge Duration `yaml:"held_age"`

	// Parked is how many messages may be parked.
	Parked *int `yaml:"parked"`

	// Duplicates is the share of deliveries that may be duplicates, between 0 and 1.
	Duplicates float64 `yaml:"duplicates"`

	// Gaps is the share of deliveries that may come before their predecessor was applied, between 0 and 1.
	Gaps float64 `yaml:"gaps"`

	// Failures is the share of handler runs that may fail, between 0 and 1.
	Failures float64 `yaml:"failures"`
}

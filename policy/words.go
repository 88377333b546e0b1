package policy

import "time"

// Duration is a time.Duration that a file writes as 90s, 12h or 7d, or as forever.
type Duration time.Duration

// Forever is how a Retention is written that never ends.
const Forever Duration = -1

// Strategy says which middlewares stand around a handler.
type Strategy string

// The strategies.
const (
	// Dedup is middleware.Deduplicate: for a handler without a transaction.
	Dedup Strategy = "dedup"
	// Inbox is middleware.Inbox: the handler's transaction remembers the message.
	Inbox Strategy = "inbox"
	// Durable is Inbox behind pubsub.Durable: what fails is tried again from the table.
	Durable Strategy = "durable"
	// Intent is Inbox with an outbox that the handler must use: it stores what another
	// consumer is to do, and has no effects outside the database itself.
	Intent Strategy = "intent"
	// Gate is Inbox with middleware.VersionGate: without a hole, in order.
	Gate Strategy = "gate"
	// Latest is Gate for consumers that keep only the newest state.
	Latest Strategy = "latest"
	// None is no middleware of ours: each delivery runs the handler.
	None Strategy = "none"
)

// Ack says when the source is told that it may forget a message.
type Ack string

// When a message is acked.
const (
	AckCommit Ack = "commit" // when its effects are committed
	AckStored Ack = "stored" // when it is stored, to be delivered from the table
)

// OnParked says what happens behind a parked message of an order key.
type OnParked string

// What happens behind a parked message.
const (
	HoldKey  OnParked = "hold"
	Continue OnParked = "continue"
)

// Collision is what happens to a message with the key, but not the payload, of another.
type Collision string

// What happens on a collision.
const (
	CollisionPark Collision = "park"
	CollisionDrop Collision = "drop"
	CollisionFail Collision = "fail"
)

// Replay is what happens to a replayed message.
type Replay string

// What happens to a replayed message.
const (
	ReplayAllow    Replay = "allow"
	ReplaySuppress Replay = "suppress"
	ReplayRefuse   Replay = "refuse"
)

// SideEffects says how effects outside the database are kept from happening twice.
type SideEffects string

// What is done about effects outside the database.
const (
	NoSideEffects    SideEffects = "none"              // there are none
	ProviderKey      SideEffects = "provider-key"      // the provider is given an idempotency key
	DeterministicID  SideEffects = "deterministic-id"  // a second effect replaces the first
	OnceSteps        SideEffects = "once"              // each is a step with inbox.Once
	AcceptDuplicates SideEffects = "accept-duplicates" // they may happen twice
)

// Sequence says what becomes of a message without a version.
type Sequence string

// What becomes of a message without a version.
const (
	SequenceRequired Sequence = "required"
	SequenceOptional Sequence = "optional"
)

// OnGap says what happens to a message that comes before its predecessor.
type OnGap string

// What happens to a message that comes too early.
const (
	GapHold OnGap = "hold"
	GapFail OnGap = "fail"
)

// First is the version at which an aggregate begins.
type First string

// Where an aggregate begins.
const (
	FirstIsOne  First = "one"
	FirstIsZero First = "zero"
	FirstSeen   First = "seen"
)

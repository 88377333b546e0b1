package policy

import "time"

// Duration is a time.Duration that a file writes as 90s, 12h or 7d, or as forever.
type Duration time.Duration

// Forever is a Retention without end.
const Forever Duration = -1

// Strategy chooses the middlewares around a handler.
type Strategy string

// The strategies.
const (
	// Dedup is middleware.Deduplicate: for a handler without a transaction.
	Dedup Strategy = "dedup"
	// Inbox is middleware.Inbox: the handler's transaction remembers the message.
	Inbox Strategy = "inbox"
	// Durable is Inbox behind pubsub.Durable: the queue stores messages that fail and tries them
	// again.
	Durable Strategy = "durable"
	// Intent is Inbox with an outbox that the handler must use: the handler has no effects outside
	// the database, and stores what another consumer must do.
	Intent Strategy = "intent"
	// Gate is Inbox with middleware.VersionGate: in order, without gaps.
	Gate Strategy = "gate"
	// Latest is Gate for consumers that keep only the newest state.
	Latest Strategy = "latest"
	// None has no middleware of Millrace: every delivery runs the handler.
	None Strategy = "none"
)

// Ack says when the source is told that it may forget a message.
type Ack string

// Times at which a message is acked.
const (
	AckCommit Ack = "commit" // once its effects are committed
	AckStored Ack = "stored" // once the queue has stored it
)

// OnParked says what happens to the messages behind a parked message of the same order key.
type OnParked string

// Treatments of the messages behind a parked message.
const (
	HoldKey  OnParked = "hold"
	Continue OnParked = "continue"
)

// Collision says what happens to a message that has the key, but not the payload, of another
// message.
type Collision string

// Treatments of a collision.
const (
	CollisionPark Collision = "park"
	CollisionDrop Collision = "drop"
	CollisionFail Collision = "fail"
)

// Replay says what happens to a replayed message.
type Replay string

// Treatments of a replayed message.
const (
	ReplayAllow    Replay = "allow"
	ReplaySuppress Replay = "suppress"
	ReplayRefuse   Replay = "refuse"
)

// SideEffects says what keeps effects outside the database from happening twice.
type SideEffects string

// Ways to deal with effects outside the database.
const (
	NoSideEffects    SideEffects = "none"              // there are none
	ProviderKey      SideEffects = "provider-key"      // the provider is given an idempotency key
	DeterministicID  SideEffects = "deterministic-id"  // a second effect replaces the first
	OnceSteps        SideEffects = "once"              // each is a step with inbox.Once
	AcceptDuplicates SideEffects = "accept-duplicates" // they may happen twice
)

// Sequence says whether every message must have a version.
type Sequence string

// Treatments of a message without a version.
const (
	SequenceRequired Sequence = "required"
	SequenceOptional Sequence = "optional"
)

// OnGap says what happens to a message that comes before its predecessor.
type OnGap string

// Treatments of a message that comes before its predecessor.
const (
	GapHold OnGap = "hold"
	GapFail OnGap = "fail"
)

// First is the version at which an aggregate begins.
type First string

// Versions at which an aggregate may begin.
const (
	FirstIsOne  First = "one"
	FirstIsZero First = "zero"
	FirstSeen   First = "seen"
)

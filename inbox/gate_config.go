package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// OnGap says what happens to a message whose predecessor was not applied.
type OnGap int

// What can happen at a gap.
const (
	// GapHold stores the message until its predecessor is applied, and acks it. Then pubsub.Durable
	// delivers it. Messages of other aggregates do not wait.
	GapHold OnGap = iota
	// GapFail returns a [GapError] after a growing delay, so that the source redelivers the
	// message. It is for sources that deliver the predecessor meanwhile. If that does not happen
	// within GapFor, the gate holds the message, or parks it if no pubsub.Durable would deliver it.
	GapFail
	// GapLatest lets every newer version through: for projections that keep only the newest state.
	GapLatest
)

// First is the version with which an aggregate begins.
type First int

// How an aggregate may begin.
const (
	FirstIsOne  First = iota // at version 1
	FirstIsZero              // at version 0
	FirstSeen                // at whatever version arrives first; not at one that was held in an older epoch, or before Admin.Forget
)

// OnVersion says what happens to a message whose version can never follow the one of its aggregate.
type OnVersion int

// What can happen to such a message.
const (
	// VersionPark stores it for an operator and acks it.
	VersionPark OnVersion = iota
	// VersionDrop acks it as stale, and observers get a KindStale.
	VersionDrop
)

// GateConfig says which messages pass the version gate. middleware.VersionGate fills it in, and documents
// the fields of the same names with their defaults.
type GateConfig struct {
	Version       VersionFunc
	Optional      bool
	OnGap         OnGap
	GapFor        time.Duration
	First         First
	Starts        func(*message.Message) bool
	OnBeforeFirst OnVersion
	OnCollision   OnVersion
	MaxHeld       int
	HeldFor       time.Duration
}

func (c *GateConfig) setDefaults() {
	if c.Version == nil {
		c.Version = VersionFromMetadata()
	}
	if c.GapFor == 0 {
		c.GapFor = time.Minute
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = 1000
	}
	if c.HeldFor == 0 {
		c.HeldFor = 24 * time.Hour
	}
}

// Validate returns every problem of c at once.
func (c GateConfig) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.OnGap < GapHold || c.OnGap > GapLatest {
		problem("OnGap %d is not one of the constants", c.OnGap)
	}
	if c.First < FirstIsOne || c.First > FirstSeen {
		problem("First %d is not one of the constants", c.First)
	}
	if c.OnBeforeFirst < VersionPark || c.OnBeforeFirst > VersionDrop {
		problem("OnBeforeFirst %d is not one of the constants", c.OnBeforeFirst)
	}
	if c.OnCollision < VersionPark || c.OnCollision > VersionDrop {
		problem("OnCollision %d is not one of the constants", c.OnCollision)
	}
	if c.GapFor < 0 {
		problem("GapFor %v is negative", c.GapFor)
	}
	if c.MaxHeld < 0 {
		problem("MaxHeld %d is negative", c.MaxHeld)
	}
	if c.HeldFor < 0 {
		problem("HeldFor %v is negative", c.HeldFor)
	}
	return errors.Join(problems...)
}

package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/steady"
)

// Config says which keys and versions a [Watch] tries. Its zero value works.
type Config struct {
	// Consumer is the name in reports. Defaults to the router's handler name.
	Consumer string

	// Keys are tried besides inbox.ByUUID, inbox.ByCloudEvent and inbox.ByPayload. Each costs
	// time at every delivery, and memory for MaxKeys.
	Keys []inbox.Key

	// Versions are tried. Reports use the names; package policy has names such as
	// "json:account.id,version" for inbox.VersionFromJSON("account.id", "version"). Defaults to
	// inbox.VersionFromMetadata under the name "metadata".
	Versions map[string]inbox.VersionFunc

	// MaxKeys bounds how many values of a key, or aggregates and holes in their versions, a
	// consumer remembers for each of Keys and Versions. If there are more, it watches only a
	// sample: one half, a quarter and so on, chosen by hash, each value from its first delivery
	// on. Defaults to 20000, about 2 MB each: enough to measure a rate of 1 % to within 0.3 %. A
	// report and a log line walk through all of them.
	MaxKeys int

	// Logger gets the rates of each consumer every LogEvery, at a delivery. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// LogEvery defaults to 10 minutes.
	LogEvery time.Duration

	// Observers are told how each delivery was counted, for metrics.
	Observers []Observer
}

// Observer is told how a delivery was counted by one of the keys or versions that are tried. By a
// key, a delivery is first, duplicate, collision, retry or missing; by a version, it is first,
// in_order, early, late, repeated, retry, forgotten, missing or invalid. A delivery outside of the
// sample is not reported. The delivery's goroutine calls the Observer, which must be quick.
type Observer interface {
	ObserveShadow(ctx context.Context, consumer, by, found string)
}

// How a delivery is counted.
const (
	foundFirst     = "first"
	foundDuplicate = "duplicate"
	foundCollision = "collision"
	foundRetry     = "retry"
	foundInOrder   = "in_order"
	foundEarly     = "early"
	foundLate      = "late"
	foundRepeated  = "repeated"
	foundForgotten = "forgotten"
	foundMissing   = "missing"
	foundInvalid   = "invalid"
)

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	names := map[string]bool{}
	for _, k := range c.Keys {
		if names[k.String()] {
			problem("Keys has %s twice: remove one, or give the two functions different names", k)
		}
		names[k.String()] = true
	}
	for name, of := range c.Versions {
		if name == "" {
			problem("Versions has a function without a name: reports need it")
		}
		if of == nil {
			problem("Versions has no function under %q", name)
		}
	}
	if c.MaxKeys < 0 {
		problem("MaxKeys %d is negative", c.MaxKeys)
	}
	if c.LogEvery < 0 {
		problem("LogEvery %v is negative", c.LogEvery)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("shadow: invalid settings: %w", err)
	}
	return nil
}

func (c *Config) setDefaults() {
	all := []inbox.Key{inbox.ByUUID(), inbox.ByCloudEvent(), inbox.ByPayload()}
	for _, k := range c.Keys {
		if !slices.ContainsFunc(all, func(has inbox.Key) bool { return has.String() == k.String() }) {
			all = append(all, k)
		}
	}
	c.Keys = all
	if c.Versions == nil {
		c.Versions = map[string]inbox.VersionFunc{"metadata": inbox.VersionFromMetadata()}
	}
	if c.MaxKeys == 0 {
		c.MaxKeys = 20000
	}
	if c.LogEvery == 0 {
		c.LogEvery = 10 * time.Minute
	}
	c.Logger = steady.Default(c.Logger)
}

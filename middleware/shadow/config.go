package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
)

// Config is what a [Watch] tries. Its zero value works.
type Config struct {
	// Consumer is under which name all is reported. Defaults to the router's handler name.
	Consumer string

	// Keys are tried besides inbox.ByUUID, inbox.ByCloudEvent and inbox.ByPayload. Each costs
	// its time with every delivery and memory for MaxKeys.
	Keys []inbox.Key

	// Versions are tried, by names that package policy knows them by: "json:account.id,version"
	// for inbox.VersionFromJSON("account.id", "version"). Defaults to inbox.VersionFromMetadata
	// under the name "metadata".
	Versions map[string]inbox.VersionFunc

	// MaxKeys bounds how many keys, or aggregates and holes in their versions, are remembered for
	// each of Keys and Versions of a consumer. Where there are more, only a sample of the keys is
	// watched: one half, a quarter and so on, chosen by their hash, each from its first delivery
	// on. Defaults to 20000, about 2 MB each: enough to tell a rate of 1 % to 0.3 %. A report
	// and a log line look at each of them.
	MaxKeys int

	// Logger is told the rates of each consumer every LogEvery, at a delivery. Defaults to none.
	Logger watermill.LoggerAdapter

	// LogEvery defaults to 10 minutes.
	LogEvery time.Duration

	// Observers are told what each delivery was, for metrics.
	Observers []Observer
}

// Observer is told what a delivery was by one of the keys or versions that are tried: first,
// duplicate, collision, retry or missing by a key; first, in_order, early, late, repeated,
// retry, forgotten, missing or invalid by a version. A delivery outside of the sample is not
// told. It is called in the delivery's goroutine and must be quick.
type Observer interface {
	ObserveShadow(ctx context.Context, consumer, by, found string)
}

// What a delivery can be.
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
			problem("Keys has %s twice: leave one out, or give two functions two names", k)
		}
		names[k.String()] = true
	}
	for name, of := range c.Versions {
		if name == "" {
			problem("Versions has one without a name: it is what it is reported by")
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
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

package shadow

import (
	"slices"
	"strings"
	"time"
)

// Report has the figures of a [Watch] since it began, in this process. In JSON, durations are
// nanoseconds.
type Report struct {
	Began     time.Time  `json:"began"`
	At        time.Time  `json:"at"`
	Consumers []Consumer `json:"consumers"` // by name

	// Panics is how often a function of the Config panicked. Its results are missing here.
	Panics int `json:"panics"`
}

// Consumer has the figures of one consumer.
type Consumer struct {
	Name       string         `json:"name"`
	Watched    time.Duration  `json:"watched_ns"` // for how long
	Deliveries int            `json:"deliveries"` // all, also outside of a sample
	Failures   int            `json:"failures"`   // handlers that returned an error or panicked
	AtOnce     int            `json:"at_once"`    // the most handlers that ran at once
	Keys       []KeyRates     `json:"keys"`       // of each key that is tried
	Versions   []VersionRates `json:"versions"`
}

// KeyRates has the figures of one key. Deliveries and all fields after it are those of the sample.
// Deliveries is the sum of Distinct, Duplicates, Collisions and Retries.
type KeyRates struct {
	Key     string  `json:"key"`     // as inbox.Key.String returns it
	Missing int     `json:"missing"` // deliveries without the key, of all
	Sample  float64 `json:"sample"`  // the share of values of the key that is watched: 1 is all

	Deliveries int `json:"deliveries"`
	Distinct   int `json:"distinct"`   // values of the key
	Duplicates int `json:"duplicates"` // copies: an inbox would not run the handler
	Collisions int `json:"collisions"` // another payload than the first delivery with the key
	Retries    int `json:"retries"`    // redelivered after a failure, before the first success
	Concurrent int `json:"concurrent"` // arrived while the handler ran for another delivery of the value

	Copied int   `json:"copied"` // values with duplicates or collisions
	Apart  Times `json:"apart"`  // from the first delivery of such a value to its last copy
}

// Times sums up durations. Longest includes values that have left the sample.
type Times struct {
	Median  time.Duration `json:"median_ns"`
	P99     time.Duration `json:"p99_ns"`
	Longest time.Duration `json:"longest_ns"`
}

// Counts sums up numbers.
type Counts struct {
	Median int64 `json:"median"`
	P99    int64 `json:"p99"`
	Most   int64 `json:"most"`
}

// VersionRates has the figures of one source of versions. All but Missing and Invalid are those of
// the sample. Medians and P99 may be up to a quarter too large.
type VersionRates struct {
	Source  string  `json:"source"`
	Missing int     `json:"missing"` // deliveries without a version, of all
	Invalid int     `json:"invalid"` // deliveries with a version that no gate can use, of all
	Sample  float64 `json:"sample"`  // the share of aggregates that is watched: 1 is all

	Aggregates int `json:"aggregates"`
	FromZero   int `json:"from_zero"` // aggregates whose lowest version is 0
	FromOne    int `json:"from_one"`  // or 1

	VersionCounts

	Overtaken Counts `json:"overtaken"` // how many later versions came before a late one
	Waits     Times  `json:"waits"`     // how long the first of those would have waited for the late one

	Open    int64         `json:"open"`        // versions that are missing although later ones have come
	OpenIn  int           `json:"open_in"`     // aggregates with missing versions
	OpenFor time.Duration `json:"open_for_ns"` // the longest time that a version has been missing
}

// VersionCounts counts the versions that came, each under one of the first seven.
type VersionCounts struct {
	First     int `json:"first"`     // of their aggregate
	InOrder   int `json:"in_order"`  // one above the highest
	Early     int `json:"early"`     // further above: a gap
	Late      int `json:"late"`      // below the highest, for the first time: stale for a gate that lets the newest win
	Repeated  int `json:"repeated"`  // came before: stale for every gate
	Retries   int `json:"retries"`   // redelivered after a failure
	Forgotten int `json:"forgotten"` // late or repeated, of an aggregate with more holes than are remembered

	Held int `json:"held"` // of all, those that came while a lower version was missing
}

// Deliveries returns how many versions came.
func (c VersionCounts) Deliveries() int {
	return c.First + c.InOrder + c.Early + c.Late + c.Repeated + c.Retries + c.Forgotten
}

func (c *VersionCounts) add(o *VersionCounts) {
	c.First += o.First
	c.InOrder += o.InOrder
	c.Early += o.Early
	c.Late += o.Late
	c.Repeated += o.Repeated
	c.Retries += o.Retries
	c.Forgotten += o.Forgotten
	c.Held += o.Held
}

// Report returns the figures so far. It blocks deliveries for a moment.
func (w *Watch) Report() Report {
	r := Report{Began: w.began, At: time.Now(), Panics: int(w.panics.Load())}
	w.consumers.Range(func(_, c any) bool {
		r.Consumers = append(r.Consumers, c.(*consumer).report())
		return true
	})
	slices.SortFunc(r.Consumers, func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	return r
}

func (c *consumer) report() Consumer {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.began)
	r := Consumer{Name: c.name, Watched: now, Deliveries: c.deliveries, Failures: c.failures, AtOnce: c.atOnce}
	for _, k := range c.keys {
		r.Keys = append(r.Keys, k.report())
	}
	for _, v := range c.versions {
		r.Versions = append(r.Versions, v.report(now))
	}
	return r
}

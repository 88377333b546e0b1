package shadow

import (
	"slices"
	"strings"
	"time"
)

// Report is what a [Watch] saw since it began, in this process. Durations are nanoseconds in
// its JSON.
type Report struct {
	Began     time.Time  `json:"began"`
	At        time.Time  `json:"at"`
	Consumers []Consumer `json:"consumers"` // by name

	// Panics is how often a function of the Config panicked. What it should have said is missing.
	Panics int `json:"panics"`
}

// Consumer is what was seen of the deliveries to one of them.
type Consumer struct {
	Name       string         `json:"name"`
	Watched    time.Duration  `json:"watched_ns"` // for how long
	Deliveries int            `json:"deliveries"` // all, also those outside of a sample
	Failures   int            `json:"failures"`   // handlers that returned an error or panicked
	AtOnce     int            `json:"at_once"`    // deliveries whose handlers ran at once, at most
	Keys       []KeyRates     `json:"keys"`       // for each that was tried
	Versions   []VersionRates `json:"versions"`
}

// KeyRates is what deliveries are by one key. Deliveries, what follows it and the times are
// those of the sample; Deliveries is the sum of Distinct, Duplicates, Collisions and Retries.
type KeyRates struct {
	Key     string  `json:"key"`     // what inbox.Key.String says
	Missing int     `json:"missing"` // of all deliveries, those that do not have the key
	Sample  float64 `json:"sample"`  // which part of the values of the key is watched: 1 is all

	Deliveries int `json:"deliveries"`
	Distinct   int `json:"distinct"`   // values of the key
	Duplicates int `json:"duplicates"` // copies: an inbox would not run the handler
	Collisions int `json:"collisions"` // with the payload of another message than the first with the key
	Retries    int `json:"retries"`    // again after a failure, and not before a success
	Concurrent int `json:"concurrent"` // while the handler ran for another one

	Copied int   `json:"copied"` // values that have duplicates or collisions
	Apart  Times `json:"apart"`  // from the first delivery of such a value to its last copy
}

// Times are durations of many. Longest is also that of what has left the sample since.
type Times struct {
	Median  time.Duration `json:"median_ns"`
	P99     time.Duration `json:"p99_ns"`
	Longest time.Duration `json:"longest_ns"`
}

// Counts are numbers of many.
type Counts struct {
	Median int64 `json:"median"`
	P99    int64 `json:"p99"`
	Most   int64 `json:"most"`
}

// VersionRates is what deliveries are by one source of versions. All but Missing and
// Invalid is that of the sample. Medians and P99 are up to a quarter too great.
type VersionRates struct {
	Source  string  `json:"source"`
	Missing int     `json:"missing"` // of all deliveries, those that name no version
	Invalid int     `json:"invalid"` // and those whose version no gate can use
	Sample  float64 `json:"sample"`  // which part of the aggregates is watched: 1 is all

	Aggregates int `json:"aggregates"`
	FromZero   int `json:"from_zero"` // aggregates whose lowest version is 0
	FromOne    int `json:"from_one"`  // or 1

	VersionCounts

	Overtaken Counts `json:"overtaken"` // by how many later versions, each that was late
	Waits     Times  `json:"waits"`     // how long the first of those would have waited for it

	Open    int64         `json:"open"`        // versions that have not come, though later ones have
	OpenIn  int           `json:"open_in"`     // how many aggregates lack one
	OpenFor time.Duration `json:"open_for_ns"` // for how long, at most
}

// VersionCounts says what the versions were that came. Each is one of the first seven.
type VersionCounts struct {
	First     int `json:"first"`     // of their aggregate
	InOrder   int `json:"in_order"`  // one above the highest
	Early     int `json:"early"`     // further above: a gap
	Late      int `json:"late"`      // below the highest, for the first time: stale for a gate that lets the newest win
	Repeated  int `json:"repeated"`  // had come before: stale for every gate
	Retries   int `json:"retries"`   // again after a failure
	Forgotten int `json:"forgotten"` // late or repeated, of an aggregate with more holes than are remembered

	Held int `json:"held"` // of all, those that came while a version below was missing
}

// Deliveries is how many versions came.
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

// Report returns what was seen until now. Deliveries wait for a moment while it is made.
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

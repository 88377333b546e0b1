package shadow

import (
	"math"
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// versionTally holds the figures of one source of versions.
type versionTally struct {
	name    string
	of      inbox.VersionFunc
	most    int
	seen    map[uint64]*aggregate // by the hash of its id
	holes   int                   // of all aggregates
	sample  sample
	missing int
	invalid int
}

// arrive counts a version of an aggregate and returns how.
func (t *versionTally) arrive(hash uint64, version int64, now time.Duration) (found string) {
	if !t.sample.has(hash) {
		return ""
	}
	a := t.seen[hash]
	if a == nil {
		a = &aggregate{}
		t.seen[hash] = a
	}
	before := len(a.holes)
	found = a.arrive(version, now)
	t.holes += len(a.holes) - before
	t.thin()
	return found
}

func (t *versionTally) leave(hash uint64, version int64, succeeded bool) {
	if a := t.seen[hash]; a != nil {
		a.leave(version, succeeded)
	}
}

// thin shrinks the sample until it fits. It leaves in a few aggregates with many holes each:
// mostHoles bounds those.
func (t *versionTally) thin() {
	for len(t.seen)+t.holes > t.most && len(t.seen) > max(t.most/mostHoles, 1) {
		t.sample++
		for hash, a := range t.seen {
			if !t.sample.has(hash) {
				t.holes -= len(a.holes)
				delete(t.seen, hash)
			}
		}
	}
}

func (t *versionTally) report(now time.Duration) VersionRates {
	r := VersionRates{
		Source: t.name, Missing: t.missing, Invalid: t.invalid, Sample: t.sample.share(), Aggregates: len(t.seen),
	}
	var overtaken, waits histogram
	for _, a := range t.seen {
		r.add(&a.counts)
		switch a.low {
		case 0:
			r.FromZero++
		case 1:
			r.FromOne++
		}
		overtaken.add(&a.overtaken)
		waits.add(&a.waits)
		if open := a.open(); open > 0 {
			r.Open += min(open, math.MaxInt64-r.Open)
			r.OpenIn++
			r.OpenFor = max(r.OpenFor, now-a.openSince())
		}
	}
	r.Overtaken = Counts{Median: overtaken.quantile(50), P99: overtaken.quantile(99), Most: overtaken.most}
	r.Waits = Times{
		Median: time.Duration(waits.quantile(50)), P99: time.Duration(waits.quantile(99)), Longest: time.Duration(waits.most),
	}
	return r
}

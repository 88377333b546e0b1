package shadow

import (
	"math"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// sample is the part of all hashes that is watched: all, one half, a quarter, and so on. Each
// sample is part of the larger ones, so a hash that is still in the sample has been counted from
// its first delivery on.
type sample uint

func (s sample) has(hash uint64) bool { return s == 0 || hash>>(64-s) == 0 }

func (s sample) share() float64 { return math.Ldexp(1, -int(s)) } //nolint:gosec // at most 63

// keyTally holds the figures of one key.
type keyTally struct {
	key       inbox.Key
	isPayload bool
	most      int
	seen      map[uint64]keySeen
	sample    sample
	missing   int
	longest   time.Duration // between two deliveries of a key
}

// keySeen holds the figures of one value of a key. Hashes of 64 bits stand for the value and the
// payload: the odds that two of a million are equal are one in 30 million.
type keySeen struct {
	payload    uint64 // of the first delivery
	first      time.Duration
	last       time.Duration // of the last copy
	duplicates uint32
	collisions uint32
	retries    uint32
	concurrent uint32
	running    int32 // deliveries whose handlers still run
	handled    bool  // a handler succeeded
}

// arrive counts a delivery and returns how.
func (t *keyTally) arrive(hash, payload uint64, now time.Duration) (found string) {
	if !t.sample.has(hash) {
		return ""
	}
	e, known := t.seen[hash]
	switch {
	case !known:
		e = keySeen{payload: payload, first: now, last: now}
		found = foundFirst
	case e.payload != payload:
		e.collisions++
		e.last = now
		found = foundCollision
	case e.handled || e.running > 0:
		e.duplicates++
		e.last = now
		found = foundDuplicate
	default:
		e.retries++
		found = foundRetry
	}
	if e.running > 0 {
		e.concurrent++
	}
	e.running++
	t.seen[hash] = e
	t.longest = max(t.longest, e.last-e.first)
	for len(t.seen) > t.most {
		t.sample++
		for hash := range t.seen {
			if !t.sample.has(hash) {
				delete(t.seen, hash)
			}
		}
	}
	return found
}

func (t *keyTally) leave(hash uint64, succeeded bool) {
	e, known := t.seen[hash]
	if !known {
		return // it has left the sample
	}
	e.running--
	e.handled = e.handled || succeeded
	t.seen[hash] = e
}

func (t *keyTally) report() KeyRates {
	r := KeyRates{Key: t.key.String(), Missing: t.missing, Sample: t.sample.share(), Distinct: len(t.seen)}
	var apart []time.Duration
	for _, e := range t.seen {
		r.Duplicates += int(e.duplicates)
		r.Collisions += int(e.collisions)
		r.Retries += int(e.retries)
		r.Concurrent += int(e.concurrent)
		if e.duplicates+e.collisions > 0 {
			apart = append(apart, e.last-e.first)
		}
	}
	r.Deliveries = r.Distinct + r.Duplicates + r.Collisions + r.Retries
	r.Copied = len(apart)
	r.Apart.Longest = t.longest
	slices.Sort(apart)
	if n := len(apart); n > 0 {
		r.Apart.Median, r.Apart.P99 = apart[rank(n, 50)-1], apart[rank(n, 99)-1]
	}
	return r
}

// rank returns the position, from 1 on, of a percentile in n sorted numbers.
func rank[N int | int64](n, percent N) N { return (n*percent + 99) / 100 }

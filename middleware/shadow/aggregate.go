package shadow

import (
	"math"
	"slices"
	"time"
)

// aggregate holds the figures of one aggregate: all versions from low to top have come, except
// the holes.
type aggregate struct {
	low, top  int64
	floor     int64         // below it, nothing is known
	began     time.Duration // arrival of the first version
	holes     []hole        // by version
	lost      int64         // versions of holes that are no longer remembered
	failed    map[int64]struct{}
	counts    VersionCounts
	overtaken spread // how many later versions came before a late one
	waits     spread // how long the first of them came before it
}

// hole is a range of missing versions, and the time when a later one came first.
type hole struct {
	from, to int64
	since    time.Duration
}

func (h hole) size() int64 { return h.to - h.from + 1 }

// mostHoles bounds the holes of an aggregate that are remembered, and its failed versions.
const mostHoles = 100

// arrive counts a version and returns how.
func (a *aggregate) arrive(v int64, now time.Duration) (found string) {
	_, failed := a.failed[v]
	_, missing := a.hole(v)
	switch {
	case a.counts == VersionCounts{}:
		a.low, a.top, a.began = v, v, now
		a.counts.First++
		return foundFirst
	case failed:
		a.counts.Retries++
		return foundRetry
	case v < a.floor:
		a.counts.Forgotten++
		return foundForgotten
	case v > a.top:
		return a.next(v, now)
	case v < a.low || missing:
		a.late(v, now)
		return foundLate
	default:
		a.counts.Repeated++
		return foundRepeated
	}
}

// next counts a version above all others.
func (a *aggregate) next(v int64, now time.Duration) (found string) {
	if v-1 == a.top {
		a.counts.InOrder++
		found = foundInOrder
	} else {
		a.counts.Early++
		found = foundEarly
		a.holes = append(a.holes, hole{from: a.top + 1, to: v - 1, since: now})
	}
	a.top = v
	if len(a.holes) > 0 {
		a.counts.Held++
	}
	a.forget()
	return found
}

// late counts a version that comes after later ones.
func (a *aggregate) late(v int64, now time.Duration) {
	a.counts.Late++
	above := a.top - v
	for _, h := range a.holes {
		if h.from > v {
			above -= h.size()
		} else if h.to > v {
			above -= h.to - v
		}
	}
	if v < a.low {
		above -= a.low - 1 - v // treats the versions between v and low as a hole
		a.waits.add(int64(now - a.began))
		if v < a.low-1 {
			a.holes = slices.Insert(a.holes, 0, hole{from: v + 1, to: a.low - 1, since: a.began})
		}
		a.low = v
	} else {
		i, _ := a.hole(v)
		a.waits.add(int64(now - a.holes[i].since))
		if a.holes[0].from < v {
			a.counts.Held++
		}
		a.split(i, v)
	}
	a.overtaken.add(above)
	a.forget()
}

// split removes a version from its hole.
func (a *aggregate) split(i int, v int64) {
	h := a.holes[i]
	var rest []hole
	if h.from < v {
		rest = append(rest, hole{from: h.from, to: v - 1, since: h.since})
	}
	if v < h.to {
		rest = append(rest, hole{from: v + 1, to: h.to, since: h.since})
	}
	a.holes = slices.Replace(a.holes, i, i+1, rest...)
}

// hole returns the index of the hole that has a version.
func (a *aggregate) hole(v int64) (int, bool) {
	return slices.BinarySearchFunc(a.holes, v, func(h hole, v int64) int {
		switch {
		case h.to < v:
			return -1
		case h.from > v:
			return 1
		}
		return 0
	})
}

// forget drops the lowest holes if there are too many.
func (a *aggregate) forget() {
	for len(a.holes) > mostHoles {
		a.floor = a.holes[0].to + 1
		a.lost += min(a.holes[0].size(), math.MaxInt64-a.lost)
		a.holes = slices.Delete(a.holes, 0, 1)
	}
}

func (a *aggregate) leave(v int64, succeeded bool) {
	if succeeded {
		delete(a.failed, v)
		return
	}
	if a.failed == nil {
		a.failed = map[int64]struct{}{}
	}
	if len(a.failed) < mostHoles {
		a.failed[v] = struct{}{}
	}
}

// open returns how many versions are missing.
func (a *aggregate) open() int64 {
	n := a.lost
	for _, h := range a.holes {
		n += min(h.size(), math.MaxInt64-n)
	}
	return n
}

// openSince returns when the oldest remembered hole began.
func (a *aggregate) openSince() time.Duration {
	since := time.Duration(math.MaxInt64)
	for _, h := range a.holes {
		since = min(since, h.since)
	}
	return since
}

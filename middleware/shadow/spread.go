package shadow

import (
	"math/bits"
	"slices"
)

// spread counts numbers in buckets of a quarter of a power of two. It is small while it has few
// different numbers.
type spread struct {
	most    int64
	buckets []bucket // by at
}

type bucket struct {
	at uint8
	n  uint32
}

func (s *spread) add(v int64) {
	v = max(v, 0)
	s.most = max(s.most, v)
	at := bucketOf(v)
	i, found := slices.BinarySearchFunc(s.buckets, at, func(b bucket, at uint8) int { return int(b.at) - int(at) })
	if !found {
		s.buckets = slices.Insert(s.buckets, i, bucket{at: at})
	}
	s.buckets[i].n++
}

// bucketOf returns the bucket of v: 0, 1, 2 and 3 have one each, each power of two above has four.
func bucketOf(v int64) uint8 {
	if v < 4 {
		return uint8(v) //nolint:gosec // 0 to 3
	}
	power := bits.Len64(uint64(v)) - 1              //nolint:gosec // not negative
	return uint8(power*4 + int(v>>(power-2)&3) - 4) //nolint:gosec // at most 247
}

// edge is the greatest number in a bucket.
func edge(at int) int64 {
	if at < 4 {
		return int64(at)
	}
	power, quarter := (at+4)/4, (at+4)%4
	return int64(uint64(5+quarter)<<(power-2) - 1) //nolint:gosec // at most the greatest int64
}

// histogram is the sum of many spreads.
type histogram struct {
	most int64
	n    [248]int64
}

func (h *histogram) add(s *spread) {
	h.most = max(h.most, s.most)
	for _, b := range s.buckets {
		h.n[b.at] += int64(b.n)
	}
}

// quantile returns a percentile, which is at most a quarter too large.
func (h *histogram) quantile(percent int64) int64 {
	var all int64
	for _, n := range h.n {
		all += n
	}
	if all == 0 {
		return 0
	}
	rest := rank(all, percent)
	for at, n := range h.n {
		if rest -= n; rest <= 0 {
			return min(edge(at), h.most)
		}
	}
	return h.most
}

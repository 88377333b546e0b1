package testdb

import (
	"flag"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Sample returns n of all, in their order, or all of them where [Long] is. Which ones depends on
// the day, so that over weeks each is tried, or on MILLRACE_TEST_SEED.
func Sample[T any](t testing.TB, n int, all []T) []T {
	t.Helper()
	return sample(t, t.Name(), n, all)
}

func sample[T any](t testing.TB, name string, n int, all []T) []T {
	t.Helper()
	if Long() || n >= len(all) {
		return all
	}
	seed := os.Getenv("MILLRACE_TEST_SEED")
	if seed == "" {
		seed = time.Now().UTC().Format("20060102")
	}
	t.Logf("a sample of %d of %d: MILLRACE_TEST_SEED=%s chooses it again, MILLRACE_TEST_LONG=1 takes all", n, len(all), seed)
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(seed + " " + name + " " + strconv.Itoa(len(all)))) // it never fails
	picked := rand.New(rand.NewPCG(sum.Sum64(), 0)).Perm(len(all))[:n]         //nolint:gosec // no secret
	slices.Sort(picked)
	some := make([]T, 0, n)
	for _, i := range picked {
		some = append(some, all[i])
	}
	return some
}

// Turn skips a test that takes seconds unless it is one of the n of its kind, which are named, whose
// turn it is, as [Sample] chooses them, or -run names it.
func Turn(t *testing.T, n int, kind []string) {
	t.Helper()
	if !slices.Contains(kind, t.Name()) {
		t.Fatalf("testdb: %s is none of %q", t.Name(), kind)
	}
	if !asked(t) && !slices.Contains(sample(t, strings.Join(kind, " "), n, kind), t.Name()) {
		t.Skip("it is the turn of another test of its kind")
	}
}

// asked reports whether -run has the name of a test.
func asked(t *testing.T) bool {
	run := flag.Lookup("test.run")
	return run != nil && strings.Contains(run.Value.String(), t.Name())
}

// OneIn skips a test that takes seconds on all but one of n days, as [Sample] chooses it, unless -run names it.
func OneIn(t *testing.T, n int) {
	t.Helper()
	days := make([]int, n)
	for i := range days {
		days[i] = i
	}
	if !asked(t) && !slices.Contains(sample(t, t.Name(), 1, days), 0) {
		t.Skipf("it runs one day in %d", n)
	}
}

// Some is [Each] on n of the databases, as [Sample] chooses them: for what takes seconds and is not
// about a database's own ways.
func Some(t *testing.T, n int, body func(t *testing.T, db *DB), opts ...Option) {
	t.Helper()
	for _, s := range Sample(t, n, systems) {
		t.Run(s.dialect, func(t *testing.T) {
			t.Helper()
			t.Parallel()
			body(t, On(t, s.dialect, opts...))
			ran(t, "samples of a database", s.dialect)
		})
	}
}

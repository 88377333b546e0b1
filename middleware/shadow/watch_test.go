package shadow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// What is reported of a doubled, shuffled stream with gaps, reused ids and failures is what
// was put into it.
func TestReportIsTheTruth(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		all, made := dirty.deliveries(seed)
		want := truthOf(all)
		synctest.Test(t, func(t *testing.T) {
			c := watched(t, shadow.Config{Keys: []inbox.Key{inbox.ByMetadata("order_id")}}, all)
			assert.Equal(t, len(all), c.Deliveries)
			assert.Equal(t, made.failures, c.Failures)

			sameKeys(t, "uuid", want.byUUID, c)
			sameKeys(t, `metadata:"order_id"`, want.byOrder, c)
			sameKeys(t, "payload", want.byPayload, c)
			assert.Equal(t, len(all), key(t, c, "cloudevent").Missing)

			uuid, order := key(t, c, "uuid"), key(t, c, `metadata:"order_id"`)
			assert.Equal(t, made.copies, uuid.Duplicates, "each copy is one")
			assert.Equal(t, made.reuses, uuid.Collisions)
			assert.Equal(t, made.failures, uuid.Retries)
			assert.Equal(t, made.copies+made.resends, order.Duplicates, "of this key also what was sent again")
			assert.Zero(t, order.Collisions)

			sameVersions(t, want.versions, c.Versions[0])
		})
	}
}

// watched delivers all, one after the other, in a bubble of synctest.
func watched(t *testing.T, config shadow.Config, all []delivery) shadow.Consumer {
	t.Helper()
	w, err := shadow.New(config)
	require.NoError(t, err)
	for _, d := range all {
		time.Sleep(d.pause) // of the bubble
		_, _ = w.Middleware(d.handle)(d.message())
	}
	r := w.Report()
	require.Len(t, r.Consumers, 1)
	assert.Zero(t, r.Panics)
	return r.Consumers[0]
}

func key(t *testing.T, c shadow.Consumer, name string) shadow.KeyRates {
	t.Helper()
	for _, k := range c.Keys {
		if k.Key == name {
			return k
		}
	}
	require.Fail(t, "no such key", name)
	return shadow.KeyRates{}
}

func sameKeys(t *testing.T, name string, want keyTruth, c shadow.Consumer) {
	t.Helper()
	n := len(want.apart)
	require.NotZero(t, n)
	assert.Equal(t, shadow.KeyRates{
		Key: name, Sample: 1, Deliveries: c.Deliveries, Distinct: want.distinct, Duplicates: want.duplicates,
		Collisions: want.collisions, Retries: want.retries, Copied: want.copied,
		Apart: shadow.Times{Median: want.apart[(n*50+99)/100-1], P99: want.apart[(n*99+99)/100-1], Longest: want.apart[n-1]},
	}, key(t, c, name))
}

func sameVersions(t *testing.T, want versionTruth, got shadow.VersionRates) {
	t.Helper()
	assert.Equal(t, shadow.VersionCounts{
		First: want.first, InOrder: want.inOrder, Early: want.early, Late: want.late, Repeated: want.repeated,
		Retries: want.retries, Held: want.held,
	}, got.VersionCounts)
	assert.Equal(t, want.missing, got.Missing)
	assert.EqualValues(t, want.open, got.Open)
	assert.Equal(t, want.openIn, got.OpenIn)
	require.NotEmpty(t, want.waits)
	last := len(want.waits) - 1
	assert.Equal(t, want.waits[last], got.Waits.Longest)
	assert.Equal(t, want.overtaken[last], got.Overtaken.Most)
	near(t, want.waits[(len(want.waits)*99+99)/100-1], got.Waits.P99)
	near(t, want.waits[(len(want.waits)*50+99)/100-1], got.Waits.Median)
	near(t, want.overtaken[(len(want.overtaken)*99+99)/100-1], got.Overtaken.P99)
	near(t, want.overtaken[(len(want.overtaken)*50+99)/100-1], got.Overtaken.Median)
}

// near is what the medians of versions promise.
func near[N ~int64](t *testing.T, want, got N) {
	t.Helper()
	assert.GreaterOrEqual(t, got, want)
	assert.LessOrEqual(t, float64(got), 1.25*float64(want))
}

// How late versions are, one at a time: a second passes before each.
func TestLateVersions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		versions  []int64
		overtaken int64         // the last, by how many
		waits     time.Duration // for the last
		open      int64
	}{
		"the next":                       {[]int64{1, 3, 2}, 1, 1, 0},
		"within a hole":                  {[]int64{1, 5, 3}, 1, 1, 2},
		"at the end of a hole":           {[]int64{1, 5, 4}, 1, 1, 2},
		"at the beginning of a hole":     {[]int64{1, 5, 2}, 1, 1, 2},
		"after more":                     {[]int64{1, 5, 6, 7, 3}, 3, 3, 2},
		"below another hole":             {[]int64{1, 3, 5, 2}, 2, 2, 1},
		"what is left of a hole":         {[]int64{1, 5, 3, 2}, 2, 2, 1},
		"the other half":                 {[]int64{1, 5, 3, 4}, 1, 2, 1},
		"before the first":               {[]int64{5, 2}, 1, 1, 2},
		"just before the first":          {[]int64{5, 4}, 1, 1, 0},
		"between it and what came first": {[]int64{5, 2, 3}, 1, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var all []delivery
				for _, version := range c.versions {
					all = append(all, delivery{aggregate: "a", version: version, pause: time.Second})
				}
				v := watched(t, shadow.Config{}, all).Versions[0]
				assert.Equal(t, []int64{c.overtaken, c.open}, []int64{v.Overtaken.Most, v.Open})
				assert.Equal(t, c.waits*time.Second, v.Waits.Longest)
			})
		})
	}
}

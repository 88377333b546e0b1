package shadow_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/tests/testdb"
)

func fine(*message.Message) ([]*message.Message, error) { return nil, nil }

// each delivers to a Watch that remembers so many keys.
func each(tb testing.TB, most int, all []delivery) shadow.Consumer {
	tb.Helper()
	w, err := shadow.New(shadow.Config{MaxKeys: most})
	require.NoError(tb, err)
	for _, d := range all {
		_, _ = w.Middleware(d.handle)(d.message())
	}
	return w.Report().Consumers[0]
}

// sixSigma is six standard errors of a share p that is measured of n: a test that fails
// once in a thousand million runs.
func sixSigma(p float64, n int) float64 { return 6 * math.Sqrt(p*(1-p)/float64(n)) }

// A sample of the keys has the rates of all.
func TestSampledRates(t *testing.T) {
	t.Parallel()
	s := dirty
	s.aggregates, s.versions, s.displaced = 10000, 4, 25000
	all, _ := s.deliveries(1)
	truth := truthOf(all)
	c := each(t, 5000, all)

	k := key(t, c, "uuid")
	require.Less(t, k.Sample, 0.5, "else nothing is tested")
	assert.LessOrEqual(t, k.Distinct, 5000)
	assert.Equal(t, k.Deliveries, k.Distinct+k.Duplicates+k.Collisions+k.Retries)
	share := func(n, all int) float64 { return float64(n) / float64(all) }
	for name, of := range map[string][2]int{
		"duplicates": {truth.byUUID.duplicates, k.Duplicates},
		"collisions": {truth.byUUID.collisions, k.Collisions},
		"retries":    {truth.byUUID.retries, k.Retries},
		"copied":     {truth.byUUID.copied, k.Copied},
	} {
		p := share(of[0], len(all))
		assert.InDelta(t, p, share(of[1], k.Deliveries), sixSigma(p, k.Distinct), name)
	}
	assert.InDelta(t, float64(truth.byUUID.distinct), float64(k.Distinct)/k.Sample,
		6*math.Sqrt(float64(k.Distinct))/k.Sample, "how many keys there are")

	v := c.Versions[0]
	require.Less(t, v.Sample, 1.0)
	want := truth.versions
	versions := len(all) - want.missing
	for name, of := range map[string][2]int{
		"first": {want.first, v.First}, "in order": {want.inOrder, v.InOrder}, "early": {want.early, v.Early},
		"late": {want.late, v.Late}, "repeated": {want.repeated, v.Repeated}, "retries": {want.retries, v.Retries},
		"held": {want.held, v.Held}, "open": {want.open, int(v.Open)},
	} {
		p := share(of[0], versions)
		assert.InDelta(t, p, share(of[1], v.Deliveries()), sixSigma(p, v.Aggregates), name)
	}
	assert.Equal(t, want.missing, v.Missing, "these are not sampled")
}

// What was counted of a key that leaves the sample leaves with it: else copies that come
// only at the beginning, or only at the end, would count too much or too little.
func TestSampleHasNoBias(t *testing.T) {
	t.Parallel()
	const keys, runs = 2000, 20
	for name, copied := range map[string]func(n int) bool{
		"at the beginning": func(n int) bool { return n < keys/10 },
		"at the end":       func(n int) bool { return n >= keys-keys/10 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []delivery
			for n := range keys {
				d := delivery{uuid: fmt.Sprint(n), payload: "x"}
				all = append(all, d)
				if copied(n) {
					all = append(all, d)
				}
			}
			deliveries, duplicates, distinct := 0, 0, 0
			for range runs { // each with a sample of its own
				k := key(t, each(t, 100, all), "uuid")
				deliveries, duplicates, distinct = deliveries+k.Deliveries, duplicates+k.Duplicates, distinct+k.Distinct
			}
			assert.InDelta(t, 0.1/1.1, float64(duplicates)/float64(deliveries), sixSigma(0.1, distinct))
		})
	}
}

// A million keys, and as many aggregates with holes, need no more memory than MaxKeys says.
func TestMemoryIsBounded(t *testing.T) {
	const most = 5000
	keys := testdb.Rounds(100_000, 1_000_000)
	w, err := shadow.New(shadow.Config{MaxKeys: most})
	require.NoError(t, err)
	handle := w.Middleware(fine)
	deliver := func(from, to int) {
		for n := from; n < to; n++ {
			d := delivery{uuid: fmt.Sprint(n), payload: fmt.Sprint(n), aggregate: fmt.Sprint(n % 100_000), version: int64(n / 50_000)}
			_, _ = handle(d.message())
		}
	}
	deliver(0, keys/10)
	before := heap()
	deliver(keys/10, keys)
	after := heap()
	c := w.Report().Consumers[0]
	assert.Equal(t, keys, c.Deliveries)
	assert.LessOrEqual(t, key(t, c, "uuid").Distinct, most)
	assert.InEpsilon(t, keys, float64(key(t, c, "uuid").Distinct)/key(t, c, "uuid").Sample, 0.2)
	assert.LessOrEqual(t, c.Versions[0].Aggregates, most)
	grown := int64(after) - int64(before) //nolint:gosec // far from the limits
	t.Logf("%d KB after a tenth, %d KB more after all", before>>10, grown>>10)
	assert.Less(t, grown, int64(1<<20))
	runtime.KeepAlive(w)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// One aggregate with a hole at each second version cannot be sampled away: the oldest holes
// are given up, and what comes into them is not taken for a copy.
func TestManyHolesInOneAggregate(t *testing.T) {
	t.Parallel()
	var all []delivery
	for version := int64(1); version <= 2001; version += 2 {
		all = append(all, delivery{uuid: fmt.Sprint(version), aggregate: "a", version: version})
	}
	late := delivery{uuid: "late", aggregate: "a", version: 1998}
	old := delivery{uuid: "old", aggregate: "a", version: 2}
	v := each(t, 10, append(all, late, old)).Versions[0]
	assert.InDelta(t, 1, v.Sample, 0)
	assert.Equal(t, shadow.VersionCounts{First: 1, Early: 1000, Late: 1, Forgotten: 1, Held: 1001}, v.VersionCounts)
	assert.EqualValues(t, 999, v.Open)
	assert.EqualValues(t, 2, v.Overtaken.Most, "1999 and 2001")
}

// Holes take room too: the more there are, the fewer aggregates are in the sample. Those of
// aggregates that left it take none.
func TestHolesAreBounded(t *testing.T) {
	t.Parallel()
	for holes, least := range map[int]int{49: 1, 4: 40} {
		var all []delivery
		for version := 1; version <= 1+2*holes; version += 2 {
			for n := range 1000 {
				all = append(all, delivery{uuid: fmt.Sprint(n, version), aggregate: fmt.Sprint(n), version: int64(version)})
			}
		}
		v := each(t, 1000, all).Versions[0]
		assert.GreaterOrEqual(t, v.Aggregates, least)
		assert.LessOrEqual(t, v.Aggregates*(1+holes), 1000)
		assert.Equal(t, []int{v.Aggregates, holes * v.Aggregates}, []int{v.First, v.Early}, "from the first version on")
	}
}

// The longest time between copies is kept, whatever the sample becomes.
func TestLongestIsKept(t *testing.T) {
	t.Parallel()
	all := []delivery{{uuid: "late"}, {uuid: "late", pause: time.Hour}}
	for n := range 10000 {
		all = append(all, delivery{uuid: fmt.Sprint(n)})
	}
	synctest.Test(t, func(t *testing.T) {
		k := key(t, watched(t, shadow.Config{MaxKeys: 100}, all), "uuid")
		require.Less(t, k.Sample, 0.1)
		assert.Equal(t, time.Hour, k.Apart.Longest)
	})
}

// Versions that are times, or other great numbers with great holes.
func TestGreatVersions(t *testing.T) {
	t.Parallel()
	var all []delivery
	for _, version := range []int64{1 << 60, 1, 1<<63 - 1, 0, 1<<63 - 2, 1 << 62} {
		all = append(all, delivery{uuid: fmt.Sprint(version), aggregate: "a", version: version})
	}
	v := each(t, 100, all).Versions[0]
	assert.Equal(t, shadow.VersionCounts{First: 1, Early: 1, Late: 4, Held: 3}, v.VersionCounts)
	assert.Positive(t, v.Open)
	assert.EqualValues(t, 1<<63-1-5, v.Open, "0 to the greatest are 2^63, of which six have come")
}

// BenchmarkDelivery is what a watched delivery costs more than one that is not.
func BenchmarkDelivery(b *testing.B) {
	const distinct = 1_000_000
	for name, config := range map[string]shadow.Config{
		"default":         {},
		"with a metadata": {Keys: []inbox.Key{inbox.ByMetadata("order_id")}},
		"with JSON":       {Keys: []inbox.Key{inbox.ByJSON("order.id")}},
	} {
		b.Run(name, func(b *testing.B) {
			w, err := shadow.New(config)
			require.NoError(b, err)
			handle := w.Middleware(fine)
			msg := delivery{order: "o", aggregate: "a", payload: `{"order": {"id": "o-1", "lines": [{"sku": "a", "count": 1}]}}`}.message()
			ids := make([]string, distinct)
			for n := range ids {
				ids[n] = fmt.Sprintf("8a1c0000-0000-4000-8000-%012d", n)
			}
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				msg.UUID = ids[n%distinct]
				msg.Metadata[inbox.AggregateField] = msg.UUID
				msg.Metadata[inbox.VersionField] = "1"
				_, _ = handle(msg)
				n++
			}
		})
	}
}

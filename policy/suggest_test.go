package policy_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/policy"
)

const aDay = 24 * time.Hour

// seen is a report on 10000 deliveries with some copies, which each case changes.
func seen(change func(c *shadow.Consumer)) shadow.Consumer {
	c := shadow.Consumer{
		Name: "billing", Watched: 2 * aDay, Deliveries: 10000, AtOnce: 8,
		Keys: []shadow.KeyRates{
			rates("uuid", 100), rates("cloudevent", 0), rates("payload", 100), rates(`metadata:"order_id"`, 100),
		},
		Versions: []shadow.VersionRates{{Source: "metadata", Missing: 10000, Sample: 1}},
	}
	c.Keys[1] = shadow.KeyRates{Key: "cloudevent", Missing: 10000, Sample: 1}
	if change != nil {
		change(&c)
	}
	return c
}

func rates(key string, duplicates int) shadow.KeyRates {
	return shadow.KeyRates{
		Key: key, Sample: 1, Deliveries: 10000, Distinct: 10000 - duplicates, Duplicates: duplicates, Copied: duplicates,
		Apart: shadow.Times{Median: time.Second, P99: time.Minute, Longest: 5 * time.Hour},
	}
}

// numbered are the versions of those deliveries.
func numbered(change func(v *shadow.VersionRates)) func(c *shadow.Consumer) {
	v := shadow.VersionRates{
		Source: "metadata", Sample: 1, Aggregates: 100, FromOne: 100,
		VersionCounts: shadow.VersionCounts{First: 100, InOrder: 9700, Early: 50, Late: 50, Repeated: 100, Held: 90},
		Overtaken:     shadow.Counts{Median: 1, P99: 3, Most: 7},
		Waits:         shadow.Times{Median: time.Second, P99: time.Minute, Longest: time.Hour},
	}
	change(&v)
	return func(c *shadow.Consumer) { c.Versions = []shadow.VersionRates{v} }
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	hours := func(n int) policy.Duration { return policy.Duration(time.Duration(n) * time.Hour) }
	plain := policy.Rules{Strategy: policy.Inbox, Key: policy.Key{From: "uuid"}, Window: hours(10)}
	with := func(change func(r *policy.Rules)) policy.Rules {
		r := plain
		change(&r)
		return r
	}
	gate := func(v policy.Version) policy.Rules {
		v.First = policy.FirstSeen
		return with(func(r *policy.Rules) { r.Strategy, r.Version = policy.Gate, v })
	}
	for name, c := range map[string]struct {
		of   func(c *shadow.Consumer)
		want policy.Rules
		why  string
	}{
		"copies by id":     {nil, plain, "Copies came up to 5h apart"},
		"seen for an hour": {func(c *shadow.Consumer) { c.Watched = time.Hour }, plain, "watch for longer"},
		"without ids":      {func(c *shadow.Consumer) { c.Keys = c.Keys[:1]; c.Keys[0].Missing = 7 }, plain, "7 deliveries have no UUID"},
		"few deliveries":   {func(c *shadow.Consumer) { c.Deliveries = 999 }, plain, "watch for longer"},
		"no copies": {func(c *shadow.Consumer) {
			c.Keys = []shadow.KeyRates{{Key: "uuid", Sample: 1, Deliveries: 10000, Distinct: 10000}}
		},
			with(func(r *policy.Rules) { r.Window = hours(1) }), "No copy was seen"},
		"copies after days": {func(c *shadow.Consumer) { c.Keys[0].Apart.Longest = 5 * aDay },
			with(func(r *policy.Rules) { r.Window, r.Retention = hours(240), hours(240) }), "up to 5d apart"},
		"sent again": {func(c *shadow.Consumer) { c.Keys[3] = rates(`metadata:"order_id"`, 300) },
			with(func(r *policy.Rules) { r.Key.From = "metadata:order_id" }), "metadata:order_id recognises 2 % more"},
		"sent again, as a small sample sees it": {func(c *shadow.Consumer) {
			c.Keys[3] = rates(`metadata:"order_id"`, 250)
			c.Keys[3].Sample = 0.5
		}, plain, ""},
		"an order is changed many times": {func(c *shadow.Consumer) {
			c.Keys[3] = rates(`metadata:"order_id"`, 300)
			c.Keys[3].Collisions = 500
		}, plain, "metadata:order_id is not a key: 5 % of the deliveries have the value of a message with another payload"},
		"a field that few have": {func(c *shadow.Consumer) {
			c.Keys[3] = rates(`metadata:"order_id"`, 300)
			c.Keys[3].Missing = 5000
		}, plain, "metadata:order_id is not a key: 50 % of the deliveries do not have it"},
		"a field that nearly all have": {func(c *shadow.Consumer) {
			c.Keys[3] = rates(`json:"order.id","line"`, 300)
			c.Keys[3].Missing = 5
		}, with(func(r *policy.Rules) { r.Key = policy.Key{From: "json:order.id,line", Optional: true} }), "known by their UUID"},
		"a function": {func(c *shadow.Consumer) { c.Keys[3] = rates(`func:"order and line"`, 300) },
			with(func(r *policy.Rules) { r.Key.From = "func:order and line" }), "name its functions in Wiring.Keys"},
		"joined keys": {func(c *shadow.Consumer) { c.Keys[3] = rates(`joined(metadata:"a",json:"b")`, 300) },
			with(func(r *policy.Rules) { r.Key.From = "metadata:a+json:b" }), ""},
		"the key of rules": {func(c *shadow.Consumer) { c.Keys[3] = rates(`first(metadata:"order_id"/topic,uuid)`, 300) },
			with(func(r *policy.Rules) { r.Key = policy.Key{From: "metadata:order_id", Within: "topic", Optional: true} }), ""},
		"a position": {func(c *shadow.Consumer) { c.Keys[3] = rates("position", 300) },
			with(func(r *policy.Rules) { r.Key.From = "func:KEY" }), "name its functions in Wiring.Keys"},
		"a name with a plus": {func(c *shadow.Consumer) { c.Keys[3] = rates(`metadata:"a+uuid"`, 300) },
			with(func(r *policy.Rules) { r.Key.From = "func:KEY" }), "name its functions in Wiring.Keys"},
		"ids used twice": {func(c *shadow.Consumer) { c.Keys[0].Collisions = 10 },
			with(func(r *policy.Rules) { r.Collision = policy.CollisionPark }), "10 deliveries have the uuid, but not the payload"},
		"ids used all the time": {func(c *shadow.Consumer) { c.Keys[0].Collisions = 5000 },
			with(func(r *policy.Rules) { r.Key.From = "metadata:order_id" }), "uuid is not a key"},
		"no good key":    {func(c *shadow.Consumer) { c.Keys = c.Keys[:0] }, policy.Rules{Strategy: policy.Inbox}, "None of the keys"},
		"equal payloads": {func(c *shadow.Consumer) { c.Keys[2] = rates("payload", 1100) }, plain, "10 % of the deliveries have the payload"},
		"copies at once": {func(c *shadow.Consumer) { c.Keys[0].Concurrent = 3 }, plain, "3 deliveries came while"},

		"in order":        {numbered(func(v *shadow.VersionRates) { v.Early, v.Late = 0, 0 }), plain, "a gate would have had nothing to do"},
		"gaps of an hour": {numbered(func(*shadow.VersionRates) {}), gate(policy.Version{}), "held 0.9 %"},
		"gaps of days": {numbered(func(v *shadow.VersionRates) { v.Waits.Longest, v.Overtaken.Most = 3*aDay, 900 }),
			gate(policy.Version{MaxHeld: 1800, HeldFor: hours(144)}), ""},
		"few and short gaps": {numbered(func(v *shadow.VersionRates) {
			v.Waits = shadow.Times{P99: 123 * time.Millisecond, Longest: time.Second}
		}), gate(policy.Version{OnGap: policy.GapFail}), "few and short"},
		"short gaps of one at a time": {func(c *shadow.Consumer) {
			numbered(func(v *shadow.VersionRates) {
				v.Waits = shadow.Times{P99: 123 * time.Millisecond, Longest: time.Second}
			})(c)
			c.AtOnce = 1
		}, gate(policy.Version{}), ""},
		"versions that do not come": {numbered(func(v *shadow.VersionRates) { v.Open, v.OpenFor = 5, 10*time.Hour }),
			gate(policy.Version{}), "find out where the missing ones are"},
		"numbers with holes": {numbered(func(v *shadow.VersionRates) { v.Open, v.OpenFor = 5000, 10*time.Hour }),
			with(func(r *policy.Rules) { r.Strategy = policy.Latest }), "these numbers have holes"},
		"aggregates from zero": {numbered(func(v *shadow.VersionRates) { v.FromOne, v.FromZero = 0, 99 }),
			gate(policy.Version{}), "write first: zero: with that version 99 of 100 aggregates began"},
		"aggregates from one": {numbered(func(*shadow.VersionRates) {}), gate(policy.Version{}), "write first: one: with that version 100"},
		"from elsewhere, and not all": {numbered(func(v *shadow.VersionRates) { v.Source, v.Missing, v.Invalid = "json:id,version", 100, 3 }),
			gate(policy.Version{From: "json:id,version", Sequence: policy.SequenceOptional}), "3 deliveries name a version that no gate can use"},
		"by a function":   {numbered(func(v *shadow.VersionRates) { v.Source = "ours" }), gate(policy.Version{From: "func:ours"}), "name its function in Wiring.Versions"},
		"hardly numbered": {numbered(func(v *shadow.VersionRates) { v.Missing = 9000 }), plain, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := policy.Suggest(seen(c.of))
			assert.Equal(t, "billing", s.Consumer)
			assert.Equal(t, c.want, s.Rules)
			assert.Contains(t, strings.Join(s.Why, "\n"), c.why)
			canBeUsed(t, s)
		})
	}
}

// canBeUsed checks that a suggestion, as text too, is a policy.
func canBeUsed(t *testing.T, s policy.Suggestion) {
	t.Helper()
	text := s.String()
	read, err := policy.Read(strings.NewReader(text), "suggested.yaml")
	require.NoError(t, err, text)
	assert.Equal(t, map[string]policy.Rules{s.Consumer: s.Rules}, read.Consumers, text)
}

func TestSuggestionAsText(t *testing.T) {
	t.Parallel()
	s := policy.Suggest(seen(numbered(func(v *shadow.VersionRates) { v.Source = "json:id,version" })))
	s.Why = s.Why[:1]
	assert.Equal(t, `# billing: Copies came up to 5h apart, 99 % of them within 1m; the window is twice that, and an hour at least.
consumers:
  billing:
    strategy: gate
    key:
      from: uuid
    version:
      from: json:id,version
      first: seen
    window: 10h
`, s.String())
}

// Whatever was seen, what is suggested is a policy without contradictions.
func TestAnySuggestionCanBeUsed(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	some := func() int { return []int{0, 0, 1, 50, 5000, 10000}[r.IntN(6)] }
	times := func() shadow.Times {
		longest := time.Duration(some()) * []time.Duration{time.Nanosecond, time.Second, time.Hour, aDay}[r.IntN(4)]
		return shadow.Times{Median: longest / 3, P99: longest / 2, Longest: longest}
	}
	for range 1000 {
		c := shadow.Consumer{
			Name: []string{"billing", "true", "a: b", "7", "päid", "#"}[r.IntN(6)], Watched: times().Longest,
			Deliveries: some(), AtOnce: some(),
		}
		for _, key := range []string{"uuid", "payload", `metadata:"a b"`, `metadata:"a+b"`, `json:"a","b"`, "position", `func:"x"`} {
			c.Keys = append(c.Keys, shadow.KeyRates{
				Key: key, Missing: some(), Sample: 1, Deliveries: some(), Duplicates: some(), Collisions: some(), Copied: some(), Apart: times(),
			})
		}
		v := shadow.VersionRates{Source: []string{"metadata", "json:id,version", "ours", "func:"}[r.IntN(4)], Missing: some(), Aggregates: some(), FromOne: some(), FromZero: some(), Waits: times()}
		v.First, v.Early, v.Late, v.Held = some(), some(), some(), some()
		v.Open, v.OpenFor, v.Overtaken.Most = int64(some()), times().Longest, int64(some())
		c.Versions = []shadow.VersionRates{v}
		canBeUsed(t, policy.Suggest(c))
	}
}

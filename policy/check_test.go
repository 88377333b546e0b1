package policy_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

// TestCheckNamesPaths: in a Go value there are no lines, and things that a file cannot say.
func TestCheckNamesPaths(t *testing.T) {
	t.Parallel()
	p := policy.Policy{
		Defaults: policy.Rules{Strategy: "inboxes", Retention: -2, Retry: policy.Retry{Backoff: policy.Duration(-time.Second)}},
		Consumers: map[string]policy.Rules{
			"b c": {Strategy: policy.Durable, Retention: policy.Duration(time.Minute), Epoch: math.MaxInt},
			"a": {
				Strategy: policy.Inbox, Window: policy.Duration(8 * 24 * time.Hour), Retention: policy.Duration(24 * time.Hour),
				Key: policy.Key{Within: "partition"}, Consumer: strings.Repeat("a", 256),
				Alerts: policy.Alerts{Duplicates: math.NaN(), Parked: ref(-1)},
			},
		},
	}
	err := p.Check()
	var problems policy.Problems
	require.ErrorAs(t, err, &problems)
	for _, problem := range problems {
		assert.Empty(t, problem.File)
		assert.Zero(t, problem.Line)
	}
	assert.Equal(t, []string{
		`consumers."b c".epoch: 9223372036854775807 is more than 2147483647: write less`,
		`consumers."b c".retention: 1m is below 1h, the minimum: write more, or forever`,
		`consumers.a.alerts.duplicates: NaN is not a share that can be exceeded: write a number from 0 to below 1, such as 0.05`,
		`consumers.a.alerts.parked: -1 is negative: write 0 or more`,
		`consumers.a.consumer: the name is longer than 255 bytes: choose a shorter one`,
		`consumers.a.key.within: "partition" is not one of topic, type`,
		`consumers.a.retention: what is remembered for 1d may be delivered again for 8d (window), and would be handled twice: ` +
			`write a retention of at least 8d, better twice that`,
		`defaults.retention: -2ns is negative: write a positive duration`,
		`defaults.retry.backoff: -1s is negative: write a positive duration`,
		`defaults.strategy: "inboxes" is not one of dedup, inbox, durable, intent, gate, latest, none: did you mean inbox?`,
	}, strings.Split(err.Error(), "\n"))
}

func TestCheckTakesNothing(t *testing.T) {
	t.Parallel()
	assert.NoError(t, policy.Policy{}.Check())
	assert.NoError(t, policy.Policy{Consumers: map[string]policy.Rules{"a": {}}, Strict: true}.Check())
}

// TestDefaultsOnlyApplyWhereTheyMean: what a consumer has from defaults and no use for is no
// problem; what it says itself is.
func TestDefaultsOnlyApplyWhereTheyMean(t *testing.T) {
	t.Parallel()
	p := policy.Policy{
		Defaults: policy.Rules{
			Strategy: policy.Durable, Retry: policy.Retry{Attempts: 3}, Collision: policy.CollisionPark,
			Alerts: policy.Alerts{PendingAge: policy.Duration(time.Minute), Failures: 0.1},
		},
		Consumers: map[string]policy.Rules{"dedup": {Strategy: policy.Dedup}, "inbox": {Strategy: policy.Inbox}, "none": {Strategy: policy.None}},
	}
	require.NoError(t, p.Check())
	for handler := range p.Consumers {
		rules, _ := p.For(handler)
		assert.Zero(t, rules.Retry, handler)
		assert.Zero(t, rules.Alerts.PendingAge, handler)
	}
	held := policy.Policy{
		Defaults: policy.Rules{
			Strategy: policy.Gate, OnParked: policy.Continue, Alerts: policy.Alerts{HeldAge: policy.Duration(time.Minute)},
			Version: policy.Version{MaxHeld: 3, HeldFor: policy.Duration(time.Hour)},
		},
		Consumers: map[string]policy.Rules{
			"fail":    {Version: policy.Version{OnGap: policy.GapFail}},
			"ordered": {Ack: policy.AckStored, OrderKey: "metadata:account"},
		},
	}
	require.NoError(t, held.Check())
	fail, _ := held.For("fail")
	assert.Equal(t, policy.Version{OnGap: policy.GapFail}, fail.Version)
	assert.Zero(t, fail.OnParked)
	assert.Zero(t, fail.Alerts.HeldAge)
	ordered, _ := held.For("ordered")
	assert.Equal(t, held.Defaults.Version, ordered.Version)
	assert.Equal(t, policy.Continue, ordered.OnParked)
	gaps := policy.Policy{
		Defaults: policy.Rules{
			Strategy: policy.Gate, Version: policy.Version{OnGap: policy.GapFail, GapFor: policy.Duration(time.Minute), MaxHeld: 3},
		},
		Consumers: map[string]policy.Rules{"hold": {Version: policy.Version{OnGap: policy.GapHold}}, "stored": {Ack: policy.AckStored}},
	}
	require.NoError(t, gaps.Check())
	hold, _ := gaps.For("hold")
	assert.Equal(t, policy.Version{OnGap: policy.GapHold, MaxHeld: 3}, hold.Version)
	stored, _ := gaps.For("stored")
	assert.Equal(t, policy.Version{OnGap: policy.GapFail, MaxHeld: 3}, stored.Version, "the queue stores it")
	gaps.Defaults.Ack = policy.AckStored
	gaps.Consumers["hold"] = policy.Rules{}
	assert.ErrorContains(t, gaps.Check(), "defaults.version.gap_for: no consumer returns a message to its source", "the queue of Ack stores all")
	p.Consumers["inbox"] = policy.Rules{Strategy: policy.Inbox, Retry: policy.Retry{Attempts: 3}}
	assert.Error(t, p.Check())
}

// TestCheckOfWhatWasReadAndChanged: what the file does not say is at its first line.
func TestCheckOfWhatWasReadAndChanged(t *testing.T) {
	t.Parallel()
	p, err := policy.Read(strings.NewReader("consumers:\n  a: {}\n"), "policy.yaml")
	require.NoError(t, err)
	p.Defaults.Retention = policy.Duration(time.Minute)
	p.Consumers["a"] = policy.Rules{Epoch: -1}
	assert.EqualError(t, p.Check(), "policy.yaml:1: defaults.retention: 1m is below 1h, the minimum: write more, or forever\n"+
		"policy.yaml:2: consumers.a.epoch: -1 is negative: write 0 or more")
}

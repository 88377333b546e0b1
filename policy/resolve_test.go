package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

func TestForTakesDefaultsFieldByField(t *testing.T) {
	p := policy.Policy{
		Defaults: policy.Rules{
			Strategy: policy.Gate, Retention: policy.Duration(time.Hour), Retry: policy.Retry{Attempts: 5},
			Key: policy.Key{From: "metadata:id", Optional: true}, Version: policy.Version{MaxHeld: 7},
		},
		Consumers: map[string]policy.Rules{
			"billing": {
				Retry: policy.Retry{Backoff: policy.Duration(time.Second)}, Key: policy.Key{From: "payload"},
				Version: policy.Version{First: policy.FirstSeen},
			},
			"cache": {Strategy: policy.None},
			"mails": {Strategy: policy.Dedup, SideEffects: policy.AcceptDuplicates},
		},
	}
	billing, ok := p.For("billing")
	require.True(t, ok)
	require.Equal(t, policy.Rules{
		Strategy: policy.Gate, Retention: policy.Duration(time.Hour),
		Retry:   policy.Retry{Attempts: 5, Backoff: policy.Duration(time.Second)},
		Key:     policy.Key{From: "payload"}, // whole
		Version: policy.Version{First: policy.FirstSeen, MaxHeld: 7},
		Replay:  policy.ReplayAllow,
	}, billing)

	cache, ok := p.For("cache")
	require.True(t, ok)
	require.Equal(t, policy.Rules{Strategy: policy.None, Replay: policy.ReplayAllow}, cache, "it has no use for the rest")

	mails, _ := p.For("mails")
	require.Equal(t, policy.ReplayRefuse, mails.Replay)
	require.Equal(t, policy.Duration(time.Hour), mails.Retention)
	require.Zero(t, mails.Retry)

	other, ok := p.For("nobody named it")
	require.True(t, ok)
	require.Equal(t, policy.Gate, other.Strategy)
	p.Strict = true
	_, ok = p.For("nobody named it")
	require.False(t, ok)
	require.Zero(t, p.Consumers["billing"].Retention, "the policy itself was changed")

	nothing, ok := policy.Policy{}.For("any")
	require.True(t, ok)
	require.Equal(t, policy.Rules{Strategy: policy.Inbox, Replay: policy.ReplayAllow}, nothing)
}

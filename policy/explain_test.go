package policy_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

const (
	second = policy.Duration(time.Second)
	hour   = policy.Duration(time.Hour)
)

func TestExplainSaysWhatAppliesAndWhy(t *testing.T) {
	parked := 0
	p := policy.Policy{
		Strict:   true,
		Defaults: policy.Rules{Retention: hour, Alerts: policy.Alerts{Parked: &parked}, Ack: policy.AckStored},
		Consumers: map[string]policy.Rules{
			"billing": {Strategy: policy.Gate, Epoch: 2, Version: policy.Version{From: "cloudevent"}},
			"mails":   {SideEffects: policy.AcceptDuplicates, Key: policy.Key{From: "json:id"}, OrderKey: "metadata:to"},
			"cache":   {Strategy: policy.None},
		},
	}
	require.Nil(t, p.Explain("other"))
	require.Equal(t, []policy.Setting{
		{"strategy", "none", "consumers.cache"}, {"replay", "allow", "default"}, {"side_effects", "none", "default"},
	}, p.Explain("cache"))

	billing, mails := explained(p, "billing"), explained(p, "mails")
	require.Equal(t, map[string]string{
		"strategy": "gate (consumers.billing)", "consumer": "billing (default)", "epoch": "2 (consumers.billing)",
		"key.from": "uuid (default)", "retention": "1h (defaults)", "ack": "stored (defaults)", "timeout": "25s (default)",
		"version.from": "cloudevent (consumers.billing)", "version.sequence": "required (default)", "version.on_gap": "hold (default)",
		"version.first": "one (default)", "version.max_held": "1000 (default)", "version.held_for": "1d (default)",
		"retry.attempts": "10 (default)", "retry.backoff": "1s (default)", "retry.max_backoff": "5m (default)",
		"collision": "park (default)", "replay": "allow (default)", "side_effects": "none (default)",
		"alerts.parked": "0 (defaults)", "queue": "required (strategy: gate with on_gap: hold)",
	}, billing)
	require.Equal(t, "inbox (default)", mails["strategy"])
	require.Equal(t, "refuse (side_effects: accept-duplicates)", mails["replay"])
	require.Equal(t, "drop, but park while the other message is stored (default)", mails["collision"])
	require.Equal(t, "hold (default)", mails["on_parked"])
	require.Equal(t, "required (ack: stored)", mails["queue"])
}

// What is held does not matter where nothing is: Check refuses to have it said there.
func TestExplainLeavesOutWhatIsNotHeld(t *testing.T) {
	fails := policy.Version{OnGap: policy.GapFail}
	for _, c := range []struct {
		rules policy.Rules
		held  bool
	}{
		{policy.Rules{Strategy: policy.Gate}, true},
		{policy.Rules{Strategy: policy.Gate, Version: fails}, false},
		{policy.Rules{Strategy: policy.Gate, Version: fails, Ack: policy.AckStored}, true},
	} {
		all := explained(consumers(map[string]policy.Rules{"audit": c.rules}), "audit")
		require.Equal(t, c.held, all["version.max_held"] != "")
		require.Equal(t, c.held, all["version.held_for"] != "")
		require.Equal(t, c.held, all["version.gap_for"] == "")
	}
}

// A field may be called whatever a key may begin with.
func TestExplainKnowsAKeyThatAFunctionMakes(t *testing.T) {
	for from, says := range map[string]string{
		"metadata:func:x": "drop (default)", "metadata:a+metadata:func:": "drop (default)", "uuid+func:x": "park (default)",
		"func:x":            "park if the key is the message's own id, else drop (default)",
		"metadata:a+func:x": "park if the key is the message's own id, else drop (default)",
	} {
		all := explained(consumers(map[string]policy.Rules{"audit": {Strategy: policy.Inbox, Key: policy.Key{From: from}}}), "audit")
		require.Equal(t, says, all["collision"], from)
	}
}

func explained(p policy.Policy, handler string) map[string]string {
	all := make(map[string]string)
	for _, s := range p.Explain(handler) {
		all[s.Field] = s.Value + " (" + s.From + ")"
	}
	return all
}

// What Explain calls a default is what the middlewares say of themselves.
func TestExplainedDefaultsAreTheMiddlewares(t *testing.T) {
	gate := explained(policy.Policy{Defaults: policy.Rules{Strategy: policy.Gate, OrderKey: "uuid", Ack: policy.AckStored}}, "any")
	for _, c := range []struct{ field, value, file, says string }{
		{"retention", "7d", "../inbox/options.go", "\t// Defaults to 7 days;"},
		{"timeout", "25s", "../middleware/inbox.go", "Defaults to 25 seconds,"},
		{"replay", "allow", "../inbox/options.go", "Defaults to inbox.ReplayAllow:"},
		{"version.max_held", "1000", "../middleware/versiongate.go", "Defaults to\n\t// 1000:"},
		{"version.held_for", "1d", "../middleware/versiongate.go", "Defaults to 24 hours:"},
		{"version.on_gap", "hold", "../middleware/versiongate.go", "Defaults to\n\t// inbox.GapHold,"},
		{"version.first", "one", "../middleware/versiongate.go", "Defaults to 1."},
		{"version.from", "metadata", "../middleware/versiongate.go", "Defaults to\n\t// inbox.VersionFromMetadata,"},
		{"retry.attempts", "10", "../pubsub/durable.go", "parked. Defaults to 10."},
		{"retry.backoff", "1s", "../pubsub/durable.go", "Default to 1 second and 5 minutes."},
		{"retry.max_backoff", "5m", "../pubsub/durable.go", "Default to 1 second and 5 minutes."},
		{"on_parked", "hold", "../pubsub/durable.go", "Defaults to inbox.HoldKey."},
	} {
		source, err := os.ReadFile(c.file)
		require.NoError(t, err)
		require.True(t, strings.Contains(string(source), c.says), "%s does not say %q of %s", c.file, c.says, c.field)
		require.Equal(t, c.value+" (default)", gate[c.field], c.field)
	}
	dedup := explained(policy.Policy{Defaults: policy.Rules{Strategy: policy.Dedup}}, "any")
	source, err := os.ReadFile("../middleware/deduplicate.go")
	require.NoError(t, err)
	require.Contains(t, string(source), "\t// Defaults to 7 days;")
	require.Equal(t, "7d (default)", dedup["retention"])
}

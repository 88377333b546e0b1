package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// watched is a policy with a threshold of each kind.
func watched() policy.Policy {
	const minute = policy.Duration(time.Minute)
	return policy.Policy{
		Defaults: policy.Rules{Alerts: policy.Alerts{Parked: ref(0), Duplicates: 0.5}},
		Consumers: map[string]policy.Rules{
			"ledger": {
				Strategy: policy.Gate, Consumer: "ledger.v2",
				Alerts: policy.Alerts{PendingAge: 5 * minute, HeldAge: 15 * minute, Parked: ref(3), Duplicates: 0.2, Gaps: 0.1, Failures: 0.05},
			},
			"mailer": {Strategy: policy.Dedup, Alerts: policy.Alerts{Duplicates: 0.9}},
			"cache":  {Strategy: policy.None},
		},
	}
}

func TestAlertRulesAreThoseOfTheThresholds(t *testing.T) {
	t.Parallel()
	require.NoError(t, watched().Check())
	golden := filepath.Join("testdata", "alerts.yml")
	got := watched().AlertRules("")
	if *update {
		require.NoError(t, os.WriteFile(golden, got, 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))

	strict := watched()
	strict.Strict = true
	assert.NotContains(t, string(strict.AlertRules("")), "consumer!~")
	assert.Equal(t, "groups: []\n", strings.SplitAfterN(string(policy.Policy{}.AlertRules("")), "\n", 2)[1])
	assert.Equal(t, strings.ReplaceAll(string(got), "millrace_inbox", "shop_inbox"), string(watched().AlertRules("shop")))
}

// TestAlertRulesAskForWhatThereIs compares the metrics with docs/metrics.md, which another
// test compares with what is exposed.
func TestAlertRulesAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Expr        string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(watched().AlertRules(""), &file))
	metrics := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			for _, name := range regexp.MustCompile(`millrace_\w+`).FindAllString(r.Expr, -1) {
				metrics[name] = true
				assert.True(t, regexp.MustCompile("\n\\| `"+name+"` \\| \\w+ \\| `consumer`").Match(document), name)
			}
			_, link, _ := strings.Cut(r.Annotations["runbook_url"], "/docs/")
			page, anchor, _ := strings.Cut(link, "#")
			text, err := os.ReadFile(filepath.Join("../docs", page))
			require.NoError(t, err)
			assert.True(t, strings.Contains(strings.ToLower(string(text)), "# "+anchor+"\n"), link)
		}
	}
	assert.Len(t, metrics, 8)
}

func TestPromtoolAgreesWithTheRules(t *testing.T) {
	t.Parallel()
	rig.Promtool(t, "check", "rules", "testdata/alerts.yml")
	rig.Promtool(t, "test", "rules", "testdata/alerts_test.yml")
}

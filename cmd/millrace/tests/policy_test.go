package tests_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// policies are calls that need no database, by the file of what they print.
var policies = []struct {
	name string
	args []string
}{
	{"policy-check", []string{"policy", "check", "policy.yaml"}},
	{"policy-check-wrong", []string{"policy", "check", "wrong.yaml"}},
	{"policy-check-json", []string{"policy", "check", "--json", "policy.yaml", "wrong.yaml"}},
	{"policy-check-missing", []string{"policy", "check", "there-is-none.yaml", "policy.yaml"}},
	{"policy-check-none", []string{"policy", "check"}},
	{"policy-print", []string{"policy", "print", "policy.yaml"}},
	{"policy-print-handler", []string{"policy", "print", "policy.yaml", "--handler", "mailer"}},
	{"policy-print-json", []string{"policy", "print", "policy.yaml", "--handler", "mailer", "--json"}},
	{"policy-print-unknown", []string{"policy", "print", "policy.yaml", "--handler", "mialer"}},
	{"policy-print-wrong", []string{"policy", "print", "wrong.yaml"}},
	{"policy-alerts", []string{"policy", "alerts", "policy.yaml"}},
	{"policy-alerts-none", []string{"policy", "alerts", "no-alerts.yaml"}},
	{"policy-unknown", []string{"policy", "chek", "policy.yaml"}},
}

func TestPolicyFiles(t *testing.T) {
	t.Parallel()
	for _, p := range policies {
		golden(t, p.name, p.args, withFiles(t, p.args...))
	}
}

// withFiles runs the command beside the files of testdata, without a DSN.
func withFiles(t *testing.T, args ...string) result {
	t.Helper()
	cmd := command(t.Context(), "", args...)
	cmd.Dir = "testdata"
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	return result{code: exit(t, cmd.Run()), out: out.String(), err: err.String()}
}

func TestPolicyAlertsTakeNamesOfMetrics(t *testing.T) {
	t.Parallel()
	r := withFiles(t, "policy", "alerts", "policy.yaml", "--metrics", "bad name")
	assert.Equal(t, 2, r.code)
	assert.Empty(t, r.out)
	assert.Contains(t, r.err, `--metrics: metrics: invalid Config: Namespace "bad name" must be letters, digits and _`)
}

func TestPolicySchema(t *testing.T) {
	t.Parallel()
	r := withFiles(t, "policy", "schema")
	assert.Zero(t, r.code)
	assert.Empty(t, r.err)
	assert.Equal(t, string(policy.Schema()), r.out)
	assert.True(t, json.Valid([]byte(r.out)))
	assert.Contains(t, withFiles(t, "policy", "schema", "-o", "yaml").out, "---\n$id: ")
}

func TestPolicyCompletion(t *testing.T) {
	t.Parallel()
	r := withFiles(t, "__complete", "policy", "print", "policy.yaml", "--handler", "")
	assert.Equal(t, "ledger\nmailer\n:4\n", r.out)
	r = withFiles(t, "__complete", "policy", "print", "wrong.yaml", "--handler", "")
	assert.Equal(t, ":4\n", r.out)
	r = withFiles(t, "__complete", "policy", "check", "")
	assert.Equal(t, "yaml\nyml\n:8\n", r.out)
}

func TestPromtoolTakesPolicyAlerts(t *testing.T) {
	t.Parallel()
	rules := withFiles(t, "policy", "alerts", "policy.yaml", "--metrics", "shop").out
	assert.NotContains(t, rules, "millrace_inbox")
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	assert.Contains(t, rig.Promtool(t, "check", "rules", file), "2 rules found")
}

package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

// TestDocumentedFilesAreGood reads what the documentation shows.
func TestDocumentedFilesAreGood(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../docs/policy*.md")
	require.NoError(t, err)
	found := 0
	for _, document := range append(documents, "../docs/shadow.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			file, _, ended := strings.Cut(block, "```")
			require.True(t, ended, document)
			_, err := policy.Read(strings.NewReader(file), document)
			assert.NoError(t, err)
			found++
		}
	}
	assert.NotZero(t, found)
}

// typical are the fields by which a search indexer and a notification sender are known.
var typical = map[string][]string{
	"search-indexer": {
		"strategy", "key.from", "version.sequence", "retention", "ack", "replay", "side_effects", "alerts.duplicates", "alerts.gaps",
	},
	"notification-intents": {"strategy"},
	"notification-sender": {
		"side_effects", "key.from", "ack", "retry.attempts", "retry.backoff", "retry.max_backoff", "replay", "alerts.pending_age", "alerts.parked",
	},
}

// TestTypicalConsumersAreTranslated compares the table of docs/policy.md with the policy above it: each need names
// the field that says so, with its value, or why there is none.
func TestTypicalConsumersAreTranslated(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../docs/policy.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(document), "## Two consumers, field by field")
	section, _, _ = strings.Cut(section, "\n## ")
	_, file, _ := strings.Cut(section, "```yaml\n")
	file, table, _ := strings.Cut(file, "```")
	rules, err := policy.Read(strings.NewReader(file), "policy.yaml")
	require.NoError(t, err)
	said := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(table, -1) {
		handler, need, place := row[1], row[2], row[3]
		fields := regexp.MustCompile("`([a-z_.]+): ([^`]+)`").FindAllStringSubmatch(place, -1)
		if len(fields) == 0 {
			assert.Regexp(t, "^no field: .+", place, need)
		}
		for _, field := range fields {
			want := policy.Setting{Field: field[1], Value: field[2], From: "consumers." + handler}
			assert.Contains(t, rules.Explain(handler), want, need)
			said[handler+" "+field[1]] = true
		}
	}
	for handler, fields := range typical {
		for _, field := range fields {
			assert.True(t, said[handler+" "+field], "no row tells where %s has its %s", handler, field)
		}
	}
}

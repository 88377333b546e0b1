package metrics_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAllMetricsAreDocumented compares the table in docs/metrics.md with what is exposed.
func TestAllMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	families, err := full(t).registry.Gather()
	require.NoError(t, err)
	table := []string{"| Metric | Kind | Labels | What it says |", "|---|---|---|---|"}
	for _, f := range families {
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels["`"+l.GetName()+"`"] = true
			}
		}
		table = append(table, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(slices.Sorted(maps.Keys(labels)), ", "), f.GetHelp()))
	}
	want := strings.Join(table, "\n") + "\n"
	assert.Contains(t, read(t, "../docs/metrics.md"), want, "the table should be\n%s", want)
}

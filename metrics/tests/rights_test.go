package tests_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A service that takes no steps needs no right on them: it is watched all the same.
func TestAServiceWithoutStepsIsWatched(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	role := db.Role(t)
	db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "`+role+`"`)
	db.Do(t, `REVOKE ALL ON millrace_steps FROM "`+role+`"`)

	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.NewBuilder(registry, metrics.Config{Timeout: rig.Patience})
	require.NoError(t, err)
	pool := db.Open(t, testdb.Params("role", role))
	require.NoError(t, m.WatchStore(rig.NewStore(t, pool.DB, inbox.Config{WithoutPlugin: true})))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP millrace_inbox_up 1 if the last look at the tables succeeded.
		# TYPE millrace_inbox_up gauge
		millrace_inbox_up 1
	`), "millrace_inbox_up"))
	n, err := testutil.GatherAndCount(registry, "millrace_inbox_table_rows")
	require.NoError(t, err)
	assert.Positive(t, n)
}

package tests_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestTheSizesOfTheTablesAreKnown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store := rig.NewStore(t, db.DB, inbox.Config{})
		_, err := admin.New(store).Tables(t.Context())
		require.ErrorIs(t, err, inbox.ErrNotMigrated)
		migrate(t, db, inbox.Config{})
		sizes := func() map[string]admin.Table {
			tables, err := admin.New(store).Tables(t.Context())
			require.NoError(t, err)
			var names, wanted []string
			byName := make(map[string]admin.Table)
			for _, table := range tables {
				names = append(names, table.Name)
				byName[table.Name] = table
				assert.Equal(t, db.Dialect != "sqlite", table.Estimated)
			}
			for _, table := range dialectOf(t, db).Tables() {
				wanted = append(wanted, table.Name)
			}
			assert.Equal(t, wanted, names)
			return byName
		}
		assert.Zero(t, sizes()["millrace_outbox"].Rows, "nothing was ever there")

		fill(t, db)                                           // and analyse
		require.EventuallyWithT(t, func(c *assert.CollectT) { // statistics come late
			all := sizes()
			assert.InDelta(c, 6400, all["millrace_claims"].Rows, 640)
			assert.InDelta(c, 6400, all["millrace_messages"].Rows, 640)
			assert.Zero(c, all["millrace_outbox_layout"].Rows)
		}, rig.Patience, 50*time.Millisecond)
	}, testdb.Empty())
}

// Right after the first rows PostgreSQL may know nothing; it must not be taken for none.
func TestASizeThatIsNotKnownIsNotNone(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres")
	store := migrate(t, db, inbox.Config{})
	db.Do(t, `ALTER TABLE millrace_dropped SET (autovacuum_enabled = false)`) // it may come at any time, and analyse
	db.Do(t, `SELECT pg_stat_reset()`) // the database may have been another test's, which emptied the table
	db.Do(t, `INSERT INTO millrace_dropped (at, consumer, message_id, topic, reason)
		SELECT i, 1, 'x', 't', 'r' FROM generate_series(1, 1000) i`)
	size := func() int64 {
		tables, err := admin.New(store).Tables(t.Context())
		require.NoError(t, err)
		for _, table := range tables {
			if table.Name == "millrace_dropped" {
				return table.Rows
			}
		}
		return 0
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		n := size()
		require.NotZero(t, n)
		assert.EqualValues(c, 1000, n)
	}, rig.Patience, 20*time.Millisecond)
	db.Do(t, `SELECT pg_stat_reset()`)
	assert.EqualValues(t, -1, size(), "forgotten, and never analysed")
	db.Do(t, `VACUUM ANALYZE millrace_dropped`)
	db.Do(t, `SELECT pg_stat_reset()`)
	assert.EqualValues(t, 1000, size())
}

// docs/databases.md tells whoever finds a table in the database what it is for.
func TestEachTableIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/databases.md")
	require.NoError(t, err)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(millrace_\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, row[1])
	}
	var tables []string
	for _, table := range dialect.For("sqlite", dialect.Names{Prefix: dialect.DefaultPrefix}).Tables() {
		tables = append(tables, table.Name)
	}
	assert.ElementsMatch(t, tables, documented)
}

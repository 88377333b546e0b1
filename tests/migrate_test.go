package tests_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// execute carries out the statements of a script.
func execute(t *testing.T, db *testdb.DB, script string) {
	t.Helper()
	for statement := range strings.SplitSeq(script, ";\n") {
		if strings.TrimSpace(statement) != "" {
			db.Do(t, statement)
		}
	}
}

// newSchemaAt makes the tables of a version of the schema.
func newSchemaAt(t *testing.T, db *testdb.DB, version int) {
	t.Helper()
	recorded := fmt.Sprintf("VALUES (%d, 0);\n", version)
	script, _, found := strings.Cut(dialectOf(t, db).Schema(), recorded)
	require.True(t, found)
	execute(t, db, script+recorded)
}

// Who may not migrate is told to apply what is pending by another role.
func TestWhatIsPendingWorksWhenAppliedByHand(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int{"from nothing": 0, "from an older version": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *testdb.DB) { appliesPending(t, db, version) }, testdb.Empty())
		})
	}
}

func appliesPending(t *testing.T, db *testdb.DB, version int) {
	t.Helper()
	store := rig.NewStore(t, db.DB, inbox.Config{})
	if version > 0 {
		newSchemaAt(t, db, version)
	}
	pending, err := admin.New(store).Pending(t.Context())
	require.NoError(t, err)
	for _, p := range pending {
		execute(t, db, p.DDL)
	}
	assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
	require.NoError(t, store.Migrate(t.Context()))
	pending, err = admin.New(store).Pending(t.Context())
	require.NoError(t, err)
	assert.Empty(t, pending)
}

// A migration that waits for a transaction gives up after a while, so that those who wait behind it go on.
func TestMigrateLetsOthersGoOn(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql", testdb.Empty())
	newSchemaAt(t, db, 7)
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	tx, err := db.BeginTxx(ctx, nil)
	require.NoError(t, err)
	var rows []int
	require.NoError(t, tx.SelectContext(ctx, &rows, `SELECT id FROM millrace_messages LIMIT 1`))
	pool := db.Open(t, testdb.Pool(1)).DB
	limit := waits(t, pool)
	migrated := rig.Go(func() error { return rig.NewStore(t, pool, inbox.Config{}).Migrate(ctx) })
	db.UntilWaiting(t, 1, "ADD COLUMN reason")

	_, err = db.ExecContext(ctx, `DELETE FROM millrace_messages WHERE id = 1`)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
	require.NoError(t, rig.Within(t, migrated, "the migration ends"))
	assert.Equal(t, limit, waits(t, pool), "the connection goes back as it was")
	assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
}

// waits returns how long a connection waits for a table's definition.
func waits(t *testing.T, pool *sqlx.DB) (seconds int) {
	t.Helper()
	require.NoError(t, pool.GetContext(t.Context(), &seconds, `SELECT @@SESSION.lock_wait_timeout`))
	return seconds
}

// Who makes one of the indexes beforehand gets the others.
func TestMigrateAddsWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql", testdb.Empty())
	newSchemaAt(t, db, 8)
	db.Do(t, `CREATE INDEX by_ready ON millrace_messages (consumer, due_at)`)
	migrate(t, db, inbox.Config{})
	assert.Equal(t, 3, db.Count(t, `SELECT COUNT(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'millrace_messages' AND INDEX_NAME IN ('by_ready', 'by_line', 'by_held')`))
}

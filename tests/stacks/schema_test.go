package stacks_test

import (
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestGoose makes the tables by a migration of goose, which has what millrace schema prints.
func TestGoose(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	db := testdb.On(t, "postgres", testdb.Empty())
	store := rig.NewStore(t, db.DB, inbox.Config{})
	provider, err := goose.NewProvider(goose.DialectPostgres, db.DB.DB, fstest.MapFS{"0007_millrace.sql": {Data: []byte(
		"-- +goose Up\n-- +goose StatementBegin\n" + store.Schema() + "\n-- +goose StatementEnd\n")}})
	require.NoError(t, err)
	done, err := provider.Up(t.Context())
	require.NoError(t, err)
	assert.Len(t, done, 1)
	rig.Purge(t, store)
}

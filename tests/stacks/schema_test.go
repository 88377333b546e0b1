package stacks_test

import (
	"testing"
	"testing/fstest"

	"ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"github.com/ThreeDotsLabs/watermill/message"
	golangmigrate "github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// schemaTools run one migration, which has what millrace schema prints, on an empty database.
var schemaTools = map[string]func(t *testing.T, db *testdb.DB, schema string){
	"goose": func(t *testing.T, db *testdb.DB, schema string) {
		t.Helper()
		provider, err := goose.NewProvider(goose.DialectPostgres, db.DB.DB, fstest.MapFS{"0007_millrace.sql": {Data: []byte(
			"-- +goose Up\n-- +goose StatementBegin\n" + schema + "\n-- +goose StatementEnd\n")}})
		require.NoError(t, err)
		done, err := provider.Up(t.Context())
		require.NoError(t, err)
		assert.Len(t, done, 1)
	},
	"golang-migrate": func(t *testing.T, db *testdb.DB, schema string) {
		t.Helper()
		source, err := iofs.New(fstest.MapFS{"0007_millrace.up.sql": {Data: []byte(schema)}}, ".")
		require.NoError(t, err)
		driver, err := pgx.WithInstance(db.Open(t).DB.DB, &pgx.Config{})
		require.NoError(t, err)
		tool, err := golangmigrate.NewWithInstance("iofs", source, "pgx5", driver)
		require.NoError(t, err)
		require.NoError(t, tool.Up())
		closing, err := tool.Close()
		require.NoError(t, closing)
		require.NoError(t, err)
	},
	"Atlas": func(t *testing.T, db *testdb.DB, schema string) {
		t.Helper()
		var folder migrate.MemDir
		require.NoError(t, folder.WriteFile("0007_millrace.sql", []byte(schema)))
		sum, err := folder.Checksum()
		require.NoError(t, err)
		require.NoError(t, migrate.WriteSumFile(&folder, sum)) // as atlas migrate hash
		driver, err := postgres.Open(db.DB.DB)
		require.NoError(t, err)
		tool, err := migrate.NewExecutor(driver, &folder, migrate.NopRevisionReadWriter{})
		require.NoError(t, err)
		require.NoError(t, tool.ExecuteN(t.Context(), 0))
	},
}

// TestSchemaTools handles a message by the tables that tools for migrations have made.
func TestSchemaTools(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	for name, migrated := range schemaTools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres", testdb.Empty())
			store := rig.NewStore(t, db.DB, inbox.Config{})
			migrated(t, db, store.Schema())

			router, feed, runs := rig.NewRouter(t), rig.NewFeed(), 0
			millrace.Inbox{Store: store}.AddTo(router)
			router.AddConsumerHandler("shop", "orders", feed, func(*message.Message) error { runs++; return nil })
			rig.Run(t, router) // the plugin refuses tables of an earlier release
			for range 2 {
				msg := message.NewMessage("m1", nil)
				feed.Send(t, msg)
				assert.True(t, rig.Answer(t, msg))
			}
			assert.Equal(t, 1, runs)
		})
	}
}

package tests_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func dialectOf(t *testing.T, db *testdb.DB) *dialect.Dialect {
	t.Helper()
	d := dialect.For(db.Dialect, dialect.Names{Prefix: dialect.DefaultPrefix})
	require.NotNil(t, d)
	return d
}

// statements are the dialect's, by the names of their fields.
func statements(d *dialect.Dialect) map[string]string {
	all := make(map[string]string)
	for prefix, v := range map[string]reflect.Value{
		"": reflect.ValueOf(d).Elem(), "Outbox.": reflect.ValueOf(&d.Outbox).Elem(),
		"Gate.": reflect.ValueOf(&d.Gate).Elem(), "Queue.": reflect.ValueOf(&d.Queue).Elem(),
		"Remedy.":  reflect.ValueOf(&d.Remedy).Elem(),
		"Blobs.":   reflect.ValueOf(&d.Blobs).Elem(),
		"Journal.": reflect.ValueOf(&d.Journal).Elem(), "Replays.": reflect.ValueOf(&d.Replays).Elem(),
		"Steps.": reflect.ValueOf(&d.Steps).Elem(), "History.": reflect.ValueOf(&d.History).Elem(),
	} {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Type.Kind() == reflect.String && f.Name != "Name" && !lacks(d, f.Name) {
				all[prefix+f.Name] = v.Field(i).String()
			}
		}
	}
	return all
}

// lacks reports whether the database cannot have a statement.
func lacks(d *dialect.Dialect, field string) bool {
	if field == "SelectShortKeys" {
		return d.Name != dialect.MySQLName
	}
	return slices.Contains([]string{"ClaimAndAdvance", "SelectHidden", "SelectLacking"}, field) && d.Name != dialect.PostgresName
}

// spelled is a statement of the dialect with its arguments, whose lists are spelled out.
func spelled(t *testing.T, db *testdb.DB, name string, args []any) (string, []any) {
	t.Helper()
	d := dialectOf(t, db)
	query := statements(d)[name]
	require.NotEmpty(t, query, name)
	if !strings.Contains(query, "(?)") {
		return query, args
	}
	query, args, err := d.In(query, args...)
	require.NoError(t, err, name)
	return query, args
}

var placeholder = regexp.MustCompile(`\(\?\)|[?$]\d+|\?`)

// TestEveryStatementIsUnderstood lets the server parse them all against the real tables.
func TestEveryStatementIsUnderstood(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		d := dialectOf(t, db)
		for name, statement := range statements(d) {
			var args []any
			seen := map[string]bool{}
			for _, p := range placeholder.FindAllString(statement, -1) {
				switch {
				case p == "(?)":
					args = append(args, []int{1, 2})
				case p == "?" || !seen[p]:
					args = append(args, 1)
				}
				seen[p] = true
			}
			query := statement
			if strings.Contains(statement, "(?)") {
				var err error
				query, args, err = d.In(statement, args...)
				require.NoError(t, err, name)
			}
			if db.Dialect == "sqlite" { // its driver understands nothing before it runs
				rows, err := db.QueryContext(t.Context(), "EXPLAIN "+query, args...)
				if assert.NoError(t, err, name) {
					require.NoError(t, rows.Close()) //nolint:sqlclosecheck // one of many
					assert.NoError(t, rows.Err(), name)
				}
				continue
			}
			prepared, err := db.PrepareContext(t.Context(), query)
			if assert.NoError(t, err, "%s: %s", name, query) {
				require.NoError(t, prepared.Close()) //nolint:sqlclosecheck // one of many
			}
		}
	}, testdb.Empty())
}

func TestMigrateTwiceIsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store := migrate(t, db, inbox.Config{})
		state := func() (rows []struct {
			Version   int   `db:"version"`
			AppliedAt int64 `db:"applied_at"`
		}) {
			require.NoError(t, db.SelectContext(t.Context(), &rows, `SELECT version, applied_at FROM millrace_schema ORDER BY version`))
			return rows
		}
		before := state()
		require.NoError(t, store.Migrate(t.Context()))
		assert.Equal(t, before, state())
	}, testdb.Empty())
}

func TestProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrateAtOnce(t, db)
		assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
	}, testdb.Empty())
	for _, level := range []string{"repeatable read", "serializable"} { // which connections are at by default
		t.Run("postgres at "+level, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, "postgres", testdb.Empty(), testdb.Params("default_transaction_isolation", level))
			migrateAtOnce(t, db)
		})
	}
}

func migrateAtOnce(t *testing.T, db *testdb.DB) {
	t.Helper()
	const processes = 8
	stores := make([]*inbox.Store, processes)
	for i := range stores {
		stores[i] = rig.NewStore(t, db.Open(t).DB, inbox.Config{})
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, store := range stores {
		wg.Go(func() {
			<-start
			assert.NoError(t, store.Migrate(t.Context()))
		})
	}
	close(start)
	wg.Wait()
	pending, err := admin.New(stores[0]).Pending(t.Context())
	require.NoError(t, err)
	assert.Empty(t, pending)
}

// TestMigrateNeedsNoRightWhereNothingIsToBeMade: the role of a service may be one that makes no tables.
func TestMigrateNeedsNoRightWhereNothingIsToBeMade(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"postgres", "mysql"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, server, testdb.Empty())
			migrate(t, db, inbox.Config{})
			store := rig.NewStore(t, tableless(t, db), inbox.Config{})
			require.NoError(t, store.Migrate(t.Context()))
			db.Do(t, `DELETE FROM millrace_schema WHERE version = ?`, dialectOf(t, db).Version())
			err := store.Migrate(t.Context())
			for _, text := range []string{"denied", "the role lacks a right", "run millrace migrate as a role that may", "CREATE"} {
				require.ErrorContains(t, err, text)
			}
			db.Do(t, `DROP TABLE millrace_schema`)
			require.ErrorContains(t, store.Migrate(t.Context()), "denied")
		})
	}
}

// tableless is a pool of a role that may read and write the tables, but not make any.
func tableless(t *testing.T, db *testdb.DB) *sqlx.DB {
	t.Helper()
	if db.Dialect == "mysql" {
		l := login(t, testdb.On(t, "mysql"), db)
		db.Do(t, `REVOKE ALL ON `+l.database+`.* FROM `+l.user)
		db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON `+l.database+`.* TO `+l.user)
		return l.pool
	}
	role := db.Role(t)
	db.Do(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "`+role+`"`)
	return db.Open(t, testdb.Params("role", role)).DB
}

// TestTheIdentityOfTheServerHasNoTimeZone: connections of a pool may differ in theirs, which is no other server.
func TestTheIdentityOfTheServerHasNoTimeZone(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	for _, statement := range []string{dialectOf(t, db).SelectIdentity, dialectOf(t, db).SelectBackend} {
		conn, err := db.Connx(t.Context())
		require.NoError(t, err)
		defer func() { assert.NoError(t, conn.Close()) }()
		said := make(map[string]bool)
		for _, zone := range []string{"UTC", "Asia/Tokyo"} {
			_, err := conn.ExecContext(t.Context(), `SET TIME ZONE '`+zone+`'`)
			require.NoError(t, err)
			values, err := conn.QueryRowxContext(t.Context(), statement).SliceScan()
			require.NoError(t, err)
			said[fmt.Sprint(values[0])] = true
		}
		assert.Len(t, said, 1, statement)
	}
}

// Where the index was made as docs/operations.md says, migration 6 waits for nobody who has stored something.
// Where that was cut off, or goes on, it says so.
func TestTheIndexOfTheOrderIsMadeBeforehand(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	store := migrate(t, db, inbox.Config{})
	db.Do(t, `DROP INDEX ix_millrace_outbox_order`)
	withoutReady(t, db)
	db.Do(t, `DROP TABLE millrace_history`) // of later versions
	for _, c := range stateColumns {
		db.Do(t, `ALTER TABLE millrace_messages DROP COLUMN `+c)
	}
	db.Do(t, `DELETE FROM millrace_schema WHERE version >= 6`)
	text := readText(t, "../docs/operations.md")
	concurrently := regexp.MustCompile(`CREATE INDEX CONCURRENTLY ix_millrace_outbox_order [^;]*;`).FindString(text)
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	begins := func() (end func() error) { // and leaves its transaction open
		tx, err := db.BeginTxx(ctx, nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx,
			`INSERT INTO millrace_outbox (key_hash, topic, order_key, uuid, created_at) VALUES (1, 't', 'k', 'u', 1)`)
		require.NoError(t, err)
		return tx.Rollback
	}
	end := begins()

	making, cut := context.WithCancel(ctx)
	defer cut()
	ended := rig.Go(func() error { _, err := db.ExecContext(making, concurrently); return err })
	rig.Eventually(t, "it waits for the transaction", func() bool {
		return db.Count(t, `SELECT COUNT(*) FROM pg_index WHERE indexrelid = to_regclass('ix_millrace_outbox_order') AND NOT indisvalid`) == 1
	})
	cut()
	require.Error(t, <-ended)
	require.ErrorContains(t, store.Migrate(ctx), "is not valid")

	require.NoError(t, end())
	db.Do(t, `DROP INDEX CONCURRENTLY ix_millrace_outbox_order`)
	db.Do(t, concurrently)
	end = begins()
	require.NoError(t, store.Migrate(ctx))
	require.NoError(t, end())
}

// New tables in a schema that comes first in the search path would hide the tables that there are.
func TestMigrateHidesNoTables(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	migrate(t, db, inbox.Config{})
	db.Do(t, `CREATE SCHEMA newcomer`)
	first := rig.NewStore(t, db.Open(t, testdb.Params("search_path", "newcomer,public")).DB, inbox.Config{})
	require.NoError(t, first.Migrate(t.Context()), "nothing is to be made")
	db.Do(t, `DELETE FROM millrace_schema WHERE version = $1`, dialectOf(t, db).Version())
	const refused = `the tables are in schema "public", and new ones would be made in "newcomer", which comes before it in the search path`
	require.ErrorContains(t, first.Migrate(t.Context()), refused)
	_, err := admin.New(first).Pending(t.Context())
	require.ErrorContains(t, err, refused)
	assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'newcomer'`))
	named := rig.NewStore(t, db.Open(t, testdb.Params("search_path", "newcomer,public")).DB, inbox.Config{Schema: "newcomer"})
	require.NoError(t, named.Migrate(t.Context()), "who names a schema wants tables of its own")
}

// MariaDB can be told to read another SQL, in which the tables cannot be made.
func TestMigrateNamesTheModeThatReadsAnotherSQL(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql", testdb.Empty())
	if db.MySQL() {
		t.Log("it has no such mode")
		return
	}
	store := rig.NewStore(t, db.Open(t, testdb.Params("sql_mode", "'ORACLE'")).DB, inbox.Config{})
	require.ErrorContains(t, store.Migrate(t.Context()), "sql_mode has ORACLE")
	_, err := admin.New(store).Pending(t.Context())
	require.ErrorContains(t, err, "sql_mode has ORACLE")
	migrate(t, db, inbox.Config{})
	require.NoError(t, store.Migrate(t.Context()), "nothing is to be made")
}

func TestTheSchemaWorksWhenAppliedByHand(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store := rig.NewStore(t, db.DB, inbox.Config{})
		execute(t, db, store.Schema())
		assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
		require.NoError(t, store.Migrate(t.Context()), "it is there already")
		handleTwice(t, db.DB, inbox.Config{})
	}, testdb.Empty())
}

// handleTwice delivers a message and a copy of it, and looks at the story.
func handleTwice(t *testing.T, db *sqlx.DB, config inbox.Config) {
	t.Helper()
	msg, runs := newMessage("x"), 0
	for range 2 {
		store := rig.NewStore(t, db, config) // remembers nothing
		must(t, millrace.Inbox{Store: store, Consumer: "billing"}.Middleware(func(*message.Message) ([]*message.Message, error) {
			runs++
			return nil, nil
		}), again(msg))
		require.Len(t, rig.Story(t, store, msg.UUID).Claims, 1)
		rig.Purge(t, store)
	}
	require.Equal(t, 1, runs)
}

func TestTablesMayHaveAnotherPrefix(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{}) // both side by side
		config := inbox.Config{TablePrefix: "mr_"}
		assert.Equal(t, []string{"error tables"}, subjects(check(t, documented(t, db), config)))
		migrate(t, db, config)
		handleTwice(t, db.DB, config)
		assert.Empty(t, check(t, documented(t, db), config))
		assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM millrace_claims`))
		assert.Equal(t, 1, db.Count(t, `SELECT COUNT(*) FROM mr_claims`))
	}, testdb.Empty())
}

func TestTablesMayHaveASchema(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	config := inbox.Config{Schema: "messaging"}
	require.ErrorContains(t, rig.NewStore(t, db.DB, config).Migrate(t.Context()), `there is no schema "messaging": create it`)
	assert.Equal(t, []string{"error tables"}, subjects(check(t, documented(t, db), config)))

	db.Do(t, `CREATE SCHEMA messaging`)
	migrate(t, db, config)
	handleTwice(t, db.DB, config)
	assert.Empty(t, check(t, documented(t, db), config))
	assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE 'millrace%' AND schemaname <> 'messaging'`))
}

// A Store with a schema finds its tables whatever the search path is.
func TestATenantsSchema(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	b.exec(`CREATE SCHEMA tenant`)
	b.exec(`CREATE TABLE tenant.effects (LIKE public.effects)`)
	store := b.newStore(b.db.DB, inbox.Config{Schema: "public"})
	h := b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.Join(apply(msg.Context(), msg.UUID), inbox.SetResult(msg.Context(), "found"))
	}, on(store), func(i *millrace.Inbox) {
		i.OnBegin = func(ctx context.Context, tx *sqlx.Tx, _ *message.Message) error {
			_, err := tx.ExecContext(ctx, `SET LOCAL search_path TO tenant`)
			return err
		}
	})
	msg := newMessage("x")
	must(t, h, again(msg))
	must(t, h, again(msg))
	assert.Zero(t, b.effects())
	assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM tenant.effects`))
}

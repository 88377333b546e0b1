package tests_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// documented are the settings that the comment of Store.Check recommends.
func documented(t *testing.T, db *testdb.DB, more ...string) *testdb.DB {
	t.Helper()
	params := map[string][]string{
		"postgres": {"idle_in_transaction_session_timeout", "30000", "lock_timeout", "10000"},
		"mysql": {
			"tx_isolation", "'READ-COMMITTED'", "innodb_lock_wait_timeout", "10",
			"idle_write_transaction_timeout", "30",
		},
	}[db.Dialect]
	return db.Open(t, testdb.Params(append(params, more...)...))
}

func check(t *testing.T, db *testdb.DB, config inbox.Config) []inbox.Finding {
	t.Helper()
	return findings(t, rig.NewStore(t, db.DB, config))
}

func findings(t testing.TB, store *inbox.Store) []inbox.Finding {
	t.Helper()
	found, err := store.Check(t.Context())
	require.NoError(t, err)
	return found
}

// subjects are the findings without their texts.
func subjects(found []inbox.Finding) []string {
	names := make([]string, 0, len(found))
	for _, f := range found {
		names = append(names, f.Severity.String()+" "+f.Subject)
	}
	return names
}

func migrate(t *testing.T, db *testdb.DB, config inbox.Config) *inbox.Store {
	t.Helper()
	store := rig.NewStore(t, db.DB, config)
	require.NoError(t, store.Migrate(t.Context()))
	return store
}

func TestCheckFindsNothingWhereAllIsWell(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		pool := documented(t, db)
		pool.SetMaxOpenConns(2)
		held, err := pool.Connx(t.Context())
		require.NoError(t, err)
		assert.Empty(t, check(t, pool, inbox.Config{}), "it does not wait for ever for a second connection")
		require.NoError(t, held.Close())
		assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM millrace_claims`), "the trial left something behind")
	})
}

func TestCheckComparesTheTables(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db)
		found := check(t, db, inbox.Config{})
		require.Equal(t, []string{"error tables"}, subjects(found))
		assert.Contains(t, found[0].Remedy, "Store.Migrate")
		assert.Contains(t, found[0].Remedy, "Store.Schema()")

		store := migrate(t, db, inbox.Config{})
		db.Do(t, `DROP TABLE millrace_results`)
		db.Do(t, `ALTER TABLE millrace_messages RENAME COLUMN reason TO motive`)
		found = check(t, db, inbox.Config{})
		require.Equal(t, []string{"error millrace_results", "error millrace_messages"}, subjects(found))
		assert.Contains(t, found[1].Problem, "missing: reason")
		assert.Contains(t, found[1].Remedy, "Store.Migrate")

		router := rig.NewRouter(t)
		router.AddPlugin(store.Plugin())
		require.ErrorContains(t, router.Run(t.Context()), "millrace_results: the table is missing", "it starts anyway")
	}, testdb.Empty())
}

func TestCheckComparesTheSchemaVersion(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db)
		migrate(t, db, inbox.Config{})
		version := func(n string) []string {
			db.Do(t, `UPDATE millrace_schema SET version = `+n+` WHERE version = (SELECT * FROM (SELECT MAX(version) FROM millrace_schema) m)`)
			return subjects(check(t, db, inbox.Config{}))
		}
		assert.Equal(t, []string{"warning millrace_schema"}, version("100"))
		assert.Empty(t, version(strconv.Itoa(dialectOf(t, db).Version()+1)), "the next release shares the schema")
		db.Do(t, `DELETE FROM millrace_schema`)
		assert.Equal(t, []string{"error millrace_schema"}, subjects(check(t, db, inbox.Config{})))
	})
}

func TestCheckFindsKeysThatCanBeClaimedTwice(t *testing.T) {
	t.Parallel()
	drop := map[string][]string{
		"postgres": {`ALTER TABLE millrace_claims DROP CONSTRAINT millrace_claims_pkey`},
		"mysql":    {`ALTER TABLE millrace_claims DROP PRIMARY KEY`},
		"sqlite": {`CREATE TABLE copy AS SELECT * FROM millrace_claims`, `DROP TABLE millrace_claims`,
			`ALTER TABLE copy RENAME TO millrace_claims`},
	}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db)
		migrate(t, db, inbox.Config{})
		db.DropViews(t)
		for _, statement := range drop[db.Dialect] {
			db.Do(t, statement)
		}
		assert.Equal(t, []string{"error millrace_claims"}, subjects(check(t, db, inbox.Config{})))
	})
}

func TestCheckFindsTablesThatDoNotSurviveACrash(t *testing.T) {
	t.Parallel()
	for dialect, change := range map[string]string{
		"postgres": `ALTER TABLE millrace_claims SET UNLOGGED`,
		"mysql":    `ALTER TABLE millrace_claims ENGINE = MyISAM`,
	} {
		db := documented(t, testdb.On(t, dialect))
		migrate(t, db, inbox.Config{})
		db.Do(t, change)
		found := check(t, db, inbox.Config{})
		require.Equal(t, []string{"error millrace_claims"}, subjects(found))
		assert.Contains(t, found[0].Remedy, "ALTER TABLE")
	}
}

// called are findings under the names that a server has for its variables.
func called(db *testdb.DB, found []string) []string {
	names := make([]string, 0, len(found))
	for _, f := range found {
		severity, name, both := strings.Cut(f, " ")
		if both {
			f = severity + " " + db.Variable(name)
		}
		names = append(names, f)
	}
	return names
}

func TestCheckFindsPlainDefaults(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"postgres": {"warning idle_in_transaction_session_timeout", "warning lock_timeout", "warning pool"},
		"mysql": {"warning tx_isolation", "warning idle_write_transaction_timeout", "warning innodb_lock_wait_timeout",
			"warning pool"},
	}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		found := check(t, db.Open(t, testdb.Pool(0)), inbox.Config{})
		assert.ElementsMatch(t, called(db, want[db.Dialect]), subjects(found), "%v", found)
	})
}

func TestCheckFindsWhatTheConnectionStringSpoils(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ dialect, name, value, want string }{
		{"postgres", "synchronous_commit", "off", "warning synchronous_commit"},
		{"postgres", "default_transaction_read_only", "on", "error default_transaction_read_only"},
		{"postgres", "default_transaction_isolation", "serializable", "warning default_transaction_isolation"},
		{"mysql", "tx_read_only", "1", "error tx_read_only"},
		{"mysql", "autocommit", "0", "error autocommit"},
		{"mysql", "completion_type", "'CHAIN'", "error completion_type"},
		{"mysql", "sql_mode", "''", "warning sql_mode"},
		{"mysql", "tx_isolation", "'SERIALIZABLE'", "warning tx_isolation"},
		{"mysql", "sql_safe_updates", "1", "error sql_safe_updates"},
		{"mysql", "sql_select_limit", "1", "error sql_select_limit"},
		{"mysql", "sql_select_limit", "1000", "error sql_select_limit"},
		{"mysql", "charset", "utf8", "error character_set_client"},
		{"mysql", "columnsWithAlias", "true", "error columnsWithAlias"},
		{"mysql", "clientFoundRows", "true", ""}, // which is as good as without it
	} {
		t.Run(c.dialect+" "+c.name, func(t *testing.T) {
			db := testdb.On(t, c.dialect)
			migrate(t, db, inbox.Config{})
			assert.Equal(t, strings.Join(called(db, []string{c.want}), ", "), strings.Join(subjects(check(t, documented(t, db, c.name, c.value), inbox.Config{})), ", "))
		})
	}
}

func TestCheckFindsAttachedFiles(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "sqlite").Open(t, testdb.Pool(1))
	migrate(t, db, inbox.Config{})
	db.Do(t, `ATTACH ? AS app`, filepath.Join(t.TempDir(), "app.db"))
	found := check(t, db, inbox.Config{})
	require.Equal(t, []string{"warning attached"}, subjects(found))
	assert.Contains(t, found[0].Problem, "app")
}

func TestCheckFindsModesOfMariaDB(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "mysql")
	if db.MySQL() {
		t.Log("it does not know them")
		return
	}
	for _, mode := range []string{"SIMULTANEOUS_ASSIGNMENT", "EMPTY_STRING_IS_NULL"} {
		found := check(t, documented(t, db, "sql_mode", "'STRICT_ALL_TABLES,"+mode+"'"), inbox.Config{})
		require.Equal(t, []string{"error sql_mode"}, subjects(found))
		assert.Contains(t, found[0].Problem, mode)
	}
}

// What is acked before it is handled waits where no broker shows it, so a queue that nothing watches is told of.
func TestAQueueThatNothingWatchesIsToldOf(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db = documented(t, db) // so that there is nothing else to say
		migrate(t, db, inbox.Config{})
		for _, run := range []struct {
			mode      pubsub.Mode
			observers []inbox.Observer
			told      int
		}{{pubsub.StoreFirst, nil, 1}, {pubsub.StoreFirst, []inbox.Observer{&rig.Events{}}, 0}, {pubsub.StoreOnFailure, nil, 0}} {
			events := &rig.Events{}
			store := rig.NewStore(t, db.DB, inbox.Config{Logger: events, Observers: run.observers})
			for range 2 {
				sub, err := pubsub.Durable{Store: store, Consumer: "billing", Mode: run.mode}.Decorate(rig.NewFeed())
				require.NoError(t, err)
				_, err = sub.Subscribe(t.Context(), "orders")
				require.NoError(t, err)
				require.NoError(t, sub.Close())
			}
			lines := slices.DeleteFunc(events.Logs(), func(text string) bool {
				return text != "inbox: nothing watches the backlog of a consumer; said once"
			})
			assert.Len(t, lines, run.told, "%+v", run)
			found := findings(t, store)
			if assert.Len(t, found, run.told, "%+v", run) && run.told > 0 {
				assert.Equal(t, []string{`warning consumer "billing"`}, subjects(found))
				assert.Contains(t, found[0].Problem, "StoreFirst")
				assert.Contains(t, found[0].Remedy, "Config.Observers")
			}
		}
	})
}

func TestCheckOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		db := testdb.On(t, dialect).Open(t, testdb.Via("127.0.0.1:1"))
		store := rig.NewStore(t, db.DB, inbox.Config{})
		_, err := store.Check(t.Context())
		require.ErrorIs(t, err, inbox.ErrUnavailable)
		require.ErrorContains(t, err, "connection string")
	}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store := migrate(t, db, inbox.Config{})
		require.NoError(t, db.Close())
		_, err := store.Check(t.Context())
		require.ErrorIs(t, err, inbox.ErrUnavailable)
		require.ErrorContains(t, err, "is the pool open")
	})
}

// The server answers then, and says what it refuses.
func TestCheckOfASettingThatTheServerDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		db := testdb.On(t, dialect).Open(t, testdb.Params("millrace_unknown", "1"))
		_, err := rig.NewStore(t, db.DB, inbox.Config{}).Check(t.Context())
		require.NotErrorIs(t, err, inbox.ErrUnavailable)
		require.ErrorContains(t, err, "inbox: check: the database refuses the settings of the connection string: ")
		require.ErrorContains(t, err, "millrace_unknown")
	}
}

func TestCheckIsRefusedInAHandler(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
			_, err := b.store.Check(msg.Context())
			assert.ErrorContains(t, err, "outside")
			return nil, apply(msg.Context(), msg.UUID)
		}), newMessage("x"))
	}))
}

func TestCheckRecognisesAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	const idle = "idle_in_transaction_session_timeout"
	pg := servers.Postgres(t)
	bouncer := servers.PgBouncer(t, pg.DSN(), "ignore_startup_parameters = extra_float_digits,lock_timeout,"+idle)
	direct := testdb.At(t, "postgres", pg.DSN())
	migrate(t, direct, inbox.Config{})
	pooled := func() *testdb.DB {
		return direct.Open(t, testdb.Via(bouncer.Addr()), testdb.Params("default_query_exec_mode", "exec",
			idle, "30000", "lock_timeout", "10000"))
	}
	rig.Eventually(t, "it finds two connections on one of the server's", func() bool { // within a second, or not
		found := check(t, pooled(), inbox.Config{})
		require.Equal(t, []string{"warning " + idle, "warning lock_timeout"}, subjects(found))
		return !slices.ContainsFunc(found, func(f inbox.Finding) bool { return !strings.Contains(f.Remedy, "ALTER ROLE") })
	})
	for _, setting := range []string{idle, "lock_timeout"} {
		direct.Do(t, fmt.Sprintf(`ALTER ROLE postgres SET %s = '30s'`, setting))
	}
	bouncer.Kill() // its connections have the old settings
	bouncer.Start()
	assert.Empty(t, check(t, pooled(), inbox.Config{}))
}

func TestCheckFindsAReplica(t *testing.T) {
	t.Parallel()
	s := servers.MariaDB(t, "read-only=1")
	db := testdb.At(t, "mysql", s.DSN())
	migrate(t, db, inbox.Config{})
	assert.Equal(t, []string{"error read_only"}, subjects(check(t, documented(t, db), inbox.Config{})))
}

// TestCheckTriesAnotherConnection: a driver may hand out one that its own context ended in the last moment.
func TestCheckTriesAnotherConnection(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		pool := faults.Open(t, testdb.On(t, dialect))
		store := rig.NewStore(t, pool.DB, inbox.Config{})
		asked := 0
		pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
			if strings.Contains(call, "pg_backend_pid") || strings.Contains(call, "CONNECTION_ID") {
				if asked++; asked == 2 {
					return driver.ErrBadConn
				}
			}
			return nil
		}})
		findings(t, store)
		assert.Equal(t, 4, asked)
	}
}

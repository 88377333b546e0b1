package tests_test

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
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
	v := reflect.ValueOf(d).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.IsExported() && f.Type.Kind() == reflect.String && f.Name != "Name" {
			all[f.Name] = v.Field(i).String()
		}
	}
	return all
}

var placeholder = regexp.MustCompile(`\(\?\)|\?|\$\d+`)

// TestEveryStatementIsUnderstood lets the server parse them all against the real tables.
func TestEveryStatementIsUnderstood(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		d := dialectOf(t, db)
		for name, statement := range statements(d) {
			var args []any
			for _, p := range placeholder.FindAllString(statement, -1) {
				if p == "(?)" {
					args = append(args, []int{1, 2})
				} else {
					args = append(args, 1)
				}
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
					require.NoError(t, rows.Close())
					assert.NoError(t, rows.Err(), name)
				}
				continue
			}
			prepared, err := db.PrepareContext(t.Context(), query)
			if assert.NoError(t, err, "%s: %s", name, query) {
				require.NoError(t, prepared.Close())
			}
		}
	})
}

// fill makes the tables big enough for a planner to care.
func fill(t *testing.T, db *testdb.DB) {
	t.Helper()
	text := map[string]string{
		"postgres": "convert_to((%s)::text, 'UTF8')", "mysql": "CAST(%s AS CHAR)", "sqlite": "CAST(%s AS BLOB)",
	}[db.Dialect]
	b := func(expression string) string { return fmt.Sprintf(text, expression) }
	mod := func(n int) string { return fmt.Sprintf("i %% %d", n) }
	for _, row := range []struct{ table, columns, values string }{
		{"consumers", "id, namespace, name, epoch, key_source, retention, created_at",
			"i, " + b(mod(1600)) + ", " + b("i") + ", 0, " + b("1") + ", 1, i"},
		{"claims", "consumer, message_id, result, processed_at, payload_hash, token",
			mod(5) + " + 1, " + b("i") + ", 1, i, 1, 1"},
		{"outcomes", "consumer, message_id, created_at, topic, messages",
			mod(5) + " + 1, " + b("i") + ", i * 1000000000000, " + b("1") + ", " + b("1")},
		{"results", "consumer, message_id, body", mod(5) + " + 1, " + b("i") + ", " + b("1")},
		{"messages", "consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, original",
			mod(5) + " + 1, " + b("i") + ", " + mod(40) + ", " + b("1") + ", " + b("i") + ", " + b("1") + ", " + b("1") +
				", 1, i, i, " + b("i")},
		{"audit", "at, actor, action, reason, consumer, message_id, detail",
			"i, " + b("1") + ", " + b("1") + ", " + b("1") + ", " + mod(5) + " + 1, " + b("i") + ", " + b("1")},
		{"dropped", "at, consumer, message_id, topic, reason",
			"i, " + mod(5) + " + 1, " + b("i") + ", " + b("1") + ", " + b("1")},
		{"leases", "consumer, message_id, token, until", mod(5) + " + 1, " + b("i") + ", 1, i"},
	} {
		execute(t, db, fmt.Sprintf(`
			INSERT INTO millrace_%s (%s)
			WITH RECURSIVE n (j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM n WHERE j < 79)
			SELECT %s FROM (SELECT a.j * 80 + b.j + 1 AS i FROM n a CROSS JOIN n b) numbers`, row.table, row.columns, row.values))
		analyze := map[string]string{"postgres": "ANALYZE ", "mysql": "ANALYZE TABLE ", "sqlite": "ANALYZE "}
		execute(t, db, analyze[db.Dialect]+"millrace_"+row.table)
	}
}

// hot are the statements that must find their rows by an index, with arguments.
var hot = map[string][]any{
	"Claim":            {1, []byte("x"), 1, 1},
	"Lookup":           {1, []byte("7")},
	"Retake":           {1, 1, 1, []byte("7")},
	"SelectClaim":      {1, []byte("7")},
	"OpenClaim":        {1, []byte("x"), 1, 1},
	"ReopenClaim":      {1, []byte("7"), 1},
	"CloseClaim":       {1, 1, []byte("7")},
	"SelectConsumer":   {[]byte("7"), []byte("7"), 0},
	"SelectPurgeLine":  {7},
	"LockConsumer":     {7},
	"RaisePurgeLine":   {1, 7},
	"InsertOutcome":    {1, []byte("x"), []byte("t"), []byte("m")},
	"DeleteOutcomes":   {1, [][]byte{[]byte("7"), []byte("8")}},
	"SelectOutcomes":   {[]byte("7"), 1, 100},
	"TouchMessage":     {[]byte("e"), 1, []byte("7"), 7},
	"MoveMessage":      {1, []byte("r"), 1, []byte("7"), 7},
	"DeleteMessage":    {1, []byte("7"), 7},
	"SelectMessage":    {7},
	"SelectMessages":   {[]byte("7"), 7, 0, 10},
	"StoryClaims":      {[]byte("7"), []byte("7")},
	"StoryMessages":    {[]byte("7"), []byte("7"), []byte("7"), []byte("7")},
	"StoryAudit":       {[]byte("7"), []byte("7")},
	"StoryDropped":     {[]byte("7"), []byte("7")},
	"SelectClaimsPage": {1, []byte("7"), 50},
	"LockExpired":      {1, [][]byte{[]byte("7"), []byte("8")}, 5000},
	"DeleteClaims":     {1, [][]byte{[]byte("7"), []byte("8")}},
	"DeleteResults":    {1, [][]byte{[]byte("7"), []byte("8")}},
	"PurgeDropped":     {50, 10},
	"PurgeLeases":      {50, 10},
	"AcquireLease":     {1, []byte("x"), 1, 1},
	"SelectLease":      {1, []byte("7")},
	"ConfirmLease":     {1, 1, []byte("7"), 1},
	"ExtendLease":      {1, 1, []byte("7"), 1},
	"ReleaseLease":     {1, []byte("7"), 1},
}

func TestHotStatementsUseAnIndex(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		d := dialectOf(t, db)
		all := statements(d)
		for _, name := range slices.Sorted(maps.Keys(hot)) {
			t.Run(name, func(t *testing.T) {
				query, args := all[name], hot[name]
				if strings.Contains(query, "(?)") {
					var err error
					query, args, err = d.In(query, args...)
					require.NoError(t, err)
				}
				plan := explain(t, db, query, args)
				for _, step := range plan {
					assert.False(t, scans(db.Dialect, step), "%s\n%s", step, strings.Join(plan, "\n"))
				}
				if db.Dialect == "postgres" && strings.Contains(query, "ON CONFLICT") {
					assert.Contains(t, strings.Join(plan, "\n"), "Conflict Arbiter Indexes")
				}
			})
		}
	})
}

func TestScansAreRecognised(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		fill(t, db)
		plan := explain(t, db, `SELECT token FROM millrace_claims WHERE token = 7`, nil)
		assert.True(t, slices.ContainsFunc(plan, func(s string) bool { return scans(db.Dialect, s) }), "%q", plan)
	})
}

// explain returns the steps of a plan, one a line.
func explain(t *testing.T, db *testdb.DB, query string, args []any) []string {
	t.Helper()
	verb := map[string]string{"postgres": "EXPLAIN ", "mysql": "EXPLAIN ", "sqlite": "EXPLAIN QUERY PLAN "}
	rows, err := db.QueryxContext(t.Context(), verb[db.Dialect]+query, args...)
	require.NoError(t, err)
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var plan []string
	for rows.Next() {
		step := make(map[string]any)
		require.NoError(t, rows.MapScan(step))
		for name, value := range step {
			if text, raw := value.([]byte); raw {
				step[name] = string(text)
			}
		}
		switch db.Dialect {
		case "mysql":
			plan = append(plan, fmt.Sprintf("%v %v type=%v key=%v", step["select_type"], step["table"], step["type"], step["key"]))
		case "postgres":
			plan = append(plan, fmt.Sprint(step["QUERY PLAN"]))
		default:
			plan = append(plan, fmt.Sprint(step["detail"]))
		}
	}
	require.NoError(t, rows.Err())
	return plan
}

// scans reports whether a step reads a whole table.
func scans(database, step string) bool {
	switch database {
	case "postgres":
		return strings.Contains(step, "Seq Scan")
	case "mysql": // an INSERT and the sum of a UNION are listed as ALL, though nothing is read
		return strings.Contains(step, "type=ALL") && !strings.HasPrefix(step, "INSERT ") && !strings.Contains(step, "<union")
	default:
		return strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "USING") && !strings.Contains(step, "CONSTANT ROW")
	}
}

func TestMigrateTwiceIsNothing(t *testing.T) {
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
	})
}

func TestProcessesMayMigrateAtOnce(t *testing.T) {
	const processes = 8
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		stores := make([]*inbox.Store, processes)
		for i := range stores {
			var err error
			stores[i], err = inbox.NewStore(db.Open(t).DB, inbox.Config{})
			require.NoError(t, err)
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
		assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
	})
}

func TestTheSchemaWorksWhenAppliedByHand(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		store, err := inbox.NewStore(db.DB, inbox.Config{})
		require.NoError(t, err)
		for statement := range strings.SplitSeq(store.Schema(), ";\n") {
			if strings.TrimSpace(statement) != "" {
				execute(t, db, statement)
			}
		}
		assert.Empty(t, check(t, documented(t, db), inbox.Config{}))
		require.NoError(t, store.Migrate(t.Context()), "it is there already")
		handleTwice(t, db.DB, inbox.Config{})
	})
}

// handleTwice delivers a message and a copy of it, and looks at the story.
func handleTwice(t *testing.T, db *sqlx.DB, config inbox.Config) {
	t.Helper()
	store, err := inbox.NewStore(db, config)
	require.NoError(t, err)
	consumer, err := store.Consumer(inbox.ConsumerConfig{Name: "billing"})
	require.NoError(t, err)
	msg := newMessage("x")
	claim, err := consumer.Claim(msg)
	require.NoError(t, err)
	require.True(t, claim.Fresh())
	_, err = claim.Commit(nil)
	require.NoError(t, err)
	other, err := inbox.NewStore(db, config) // remembers nothing
	require.NoError(t, err)
	consumer, err = other.Consumer(inbox.ConsumerConfig{Name: "billing"})
	require.NoError(t, err)
	claim, err = consumer.Claim(again(msg))
	require.NoError(t, err)
	require.False(t, claim.Fresh())
	story, err := other.Story(t.Context(), msg.UUID)
	require.NoError(t, err)
	require.Len(t, story.Claims, 1)
	_, err = other.Purge(t.Context())
	require.NoError(t, err)
}

func TestTablesMayHaveAnotherPrefix(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{}) // both side by side
		config := inbox.Config{TablePrefix: "mr_"}
		assert.Equal(t, []string{"error tables"}, subjects(check(t, documented(t, db), config)))
		migrate(t, db, config)
		handleTwice(t, db.DB, config)
		assert.Empty(t, check(t, documented(t, db), config))
		var rows int
		require.NoError(t, db.GetContext(t.Context(), &rows, `SELECT COUNT(*) FROM millrace_claims`))
		assert.Zero(t, rows)
		require.NoError(t, db.GetContext(t.Context(), &rows, `SELECT COUNT(*) FROM mr_claims`))
		assert.Equal(t, 1, rows)
	})
}

func TestTablesMayHaveASchema(t *testing.T) {
	db := testdb.On(t, "postgres")
	config := inbox.Config{Schema: "messaging"}
	store, err := inbox.NewStore(db.DB, config)
	require.NoError(t, err)
	err = store.Migrate(t.Context())
	require.ErrorContains(t, err, `there is no schema "messaging": create it`)
	assert.Equal(t, []string{"error tables"}, subjects(check(t, documented(t, db), config)))

	execute(t, db, `CREATE SCHEMA messaging`)
	migrate(t, db, config)
	handleTwice(t, db.DB, config)
	assert.Empty(t, check(t, documented(t, db), config))
	var outside int
	require.NoError(t, db.GetContext(t.Context(), &outside,
		`SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE 'millrace%' AND schemaname <> 'messaging'`))
	assert.Zero(t, outside)
}

// classified is what the dialect makes of an error that must have happened.
func classified(t *testing.T, err error) dialect.Kind {
	t.Helper()
	require.Error(t, err)
	t.Logf("%T: %v", err, err)
	return dialect.Classify(fmt.Errorf("wrapped: %w", err))
}

func TestErrorsAreKnownForWhatTheyAre(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		execute(t, db, `CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)`)
		execute(t, db, `INSERT INTO things VALUES (1, 0), (2, 0)`)

		_, err := db.ExecContext(t.Context(), `SELECT 1 FROM absent`)
		assert.Equal(t, dialect.NoTable, classified(t, err), "missing table")
		_, err = db.ExecContext(t.Context(), `UPDATE things SET missing = 1`)
		assert.Equal(t, dialect.NoTable, classified(t, err), "missing column")
		_, err = db.ExecContext(t.Context(), `INSERT INTO things VALUES (1, 0)`)
		assert.Equal(t, dialect.Other, classified(t, err), "duplicate")
		_, err = db.ExecContext(t.Context(), `nonsense`)
		assert.Equal(t, dialect.Other, classified(t, err), "syntax")

		t.Run("read-only", func(t *testing.T) {
			params := map[string][]string{
				"postgres": {"default_transaction_read_only", "on"}, "mysql": {"tx_read_only", "1"},
				"sqlite": {"_pragma", "query_only(1)"},
			}
			_, err := db.Open(t, testdb.Params(params[db.Dialect]...)).ExecContext(t.Context(), `UPDATE things SET n = 1`)
			assert.Equal(t, dialect.ReadOnly, classified(t, err))
		})
		t.Run("lock wait", func(t *testing.T) {
			shorten := map[string]string{
				"postgres": `SET lock_timeout = 50`, "mysql": `SET innodb_lock_wait_timeout = 1`,
				"sqlite": `PRAGMA busy_timeout = 50`,
			}
			waiter := db.Open(t, testdb.Pool(1))
			execute(t, waiter, shorten[db.Dialect])
			holder := begin(t, db)
			_, err := holder.ExecContext(t.Context(), `UPDATE things SET n = 1 WHERE id = 1`)
			require.NoError(t, err)
			_, err = waiter.ExecContext(t.Context(), `UPDATE things SET n = 2 WHERE id = 1`)
			assert.Equal(t, dialect.Contention, classified(t, err))
			require.NoError(t, holder.Rollback())
		})
		t.Run("closed pool", func(t *testing.T) {
			pool := db.Open(t)
			require.NoError(t, pool.Close())
			assert.Equal(t, dialect.Unavailable, classified(t, pool.PingContext(t.Context())))
		})
		if db.Dialect == "sqlite" {
			return // it has no deadlocks between writers, and no connections to lose
		}
		t.Run("deadlock", func(t *testing.T) {
			update := func(tx *sqlx.Tx, id int) error {
				_, err := tx.ExecContext(t.Context(), fmt.Sprintf(`UPDATE things SET n = n + 1 WHERE id = %d`, id))
				return err
			}
			one, other := begin(t, db), begin(t, db)
			require.NoError(t, update(one, 1))
			require.NoError(t, update(other, 2))
			crossed := make(chan error, 1)
			go func() { crossed <- update(one, 2) }()
			err := update(other, 1)
			if err == nil {
				require.NoError(t, other.Rollback())
				err = <-crossed
			} else {
				require.NoError(t, other.Rollback())
				require.NoError(t, <-crossed)
			}
			assert.Equal(t, dialect.Contention, classified(t, err))
			_ = one.Rollback() // it may be the victim
		})
		t.Run("killed connection", func(t *testing.T) {
			victim := begin(t, db)
			ask := map[string]string{"postgres": `SELECT pg_backend_pid()`, "mysql": `SELECT CONNECTION_ID()`}
			kill := map[string]string{"postgres": `SELECT pg_terminate_backend(%d)`, "mysql": `KILL %d`}
			var id int64
			require.NoError(t, victim.GetContext(t.Context(), &id, ask[db.Dialect]))
			execute(t, db, fmt.Sprintf(kill[db.Dialect], id))
			assert.Equal(t, dialect.Unavailable, classified(t, victim.GetContext(t.Context(), &id, ask[db.Dialect])))
			assert.Equal(t, dialect.Unavailable, classified(t, victim.Commit()))
		})
		t.Run("nobody there", func(t *testing.T) {
			err := db.Open(t, testdb.Via("127.0.0.1:1")).PingContext(t.Context())
			assert.Equal(t, dialect.Unavailable, classified(t, err))
		})
	})
}

func begin(t *testing.T, db *testdb.DB) *sqlx.Tx {
	t.Helper()
	tx, err := db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // over by then, unless the test failed
	return tx
}

// A claim tells fresh from duplicate by the rows it affected, whatever the driver counts.
func TestAClaimIsFreshOnce(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		migrate(t, db, inbox.Config{})
		d := dialectOf(t, db)
		pools := []*testdb.DB{db}
		if db.Dialect == "mysql" {
			pools = append(pools, db.Open(t, testdb.Params("clientFoundRows", "true")))
		}
		for i, pool := range pools {
			for copies, key := 0, []byte{byte(i)}; copies < 3; copies++ {
				result, err := pool.ExecContext(t.Context(), d.Claim, 1, key, 1, 1)
				require.NoError(t, err)
				rows, err := result.RowsAffected()
				require.NoError(t, err)
				assert.Equal(t, copies == 0, rows == 1, "copy %d affected %d rows", copies, rows)
			}
		}
	})
}

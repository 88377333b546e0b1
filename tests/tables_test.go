package tests_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
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
	db.Do(t, `SELECT pg_stat_reset()`)                                        // the database may have been another test's, which emptied the table
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
	rig.Eventually(t, "it is forgotten, and was never analysed", func() bool { return size() == -1 }) // before 15 a reset takes time
	db.Do(t, `VACUUM ANALYZE millrace_dropped`)
	db.Do(t, `SELECT pg_stat_reset()`)
	assert.EqualValues(t, 1000, size())
}

// docs/databases.md tells whoever finds a table in the database what it is for.
func TestEachTableIsDocumented(t *testing.T) {
	t.Parallel()
	page := readText(t, "../docs/databases.md")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(millrace_\\w+)` \\|").FindAllStringSubmatch(page, -1) {
		documented = append(documented, row[1])
	}
	var tables []string
	for _, table := range dialect.For("sqlite", dialect.Names{Prefix: dialect.DefaultPrefix}).Tables() {
		tables = append(tables, table.Name)
	}
	assert.ElementsMatch(t, tables, documented)
}

// emptied gives tables that were vacuumed when they were empty, and are not looked after again.
func emptied(t *testing.T) (*testdb.DB, *inbox.Store) {
	t.Helper()
	db := testdb.On(t, "postgres", testdb.Empty())
	db.SetMaxIdleConns(0) // the server hears late of what was written, unless the connection ends
	store := migrate(t, db, inbox.Config{PurgeInterval: time.Hour})
	for _, table := range dialectOf(t, db).Tables() {
		db.Do(t, `ALTER TABLE `+table.Name+` SET (autovacuum_enabled = off)`)
		db.Do(t, `VACUUM ANALYZE `+table.Name)
	}
	return db, store
}

// prepared is a statement that one connection runs again and again.
type prepared struct {
	conn    *sqlx.Conn
	execute string
}

// prepare says a statement to the server with its arguments, so that it can be run.
func prepare(t *testing.T, db *testdb.DB, conn *sqlx.Conn, name string) *prepared {
	t.Helper()
	query, args := spelled(t, db, name, hot[name])
	called := `"` + name + `"`
	_, err := conn.ExecContext(t.Context(), `PREPARE `+called+` AS `+query)
	require.NoError(t, err, name)
	literals := make([]string, len(args))
	for i, arg := range args {
		switch value := arg.(type) {
		case nil:
			literals[i] = "NULL"
		case []byte:
			literals[i] = fmt.Sprintf(`'\x%x'`, value)
		default:
			literals[i] = fmt.Sprint(value)
		}
	}
	if len(args) > 0 {
		called += "(" + strings.Join(literals, ", ") + ")"
	}
	return &prepared{conn: conn, execute: called}
}

// plan is what the connection would do next.
func (p *prepared) plan(t *testing.T) (plan string) {
	t.Helper()
	var steps []string
	require.NoError(t, p.conn.SelectContext(t.Context(), &steps, `EXPLAIN EXECUTE `+p.execute), p.execute)
	return strings.Join(steps, "\n")
}

func connection(t *testing.T, db *testdb.DB) *sqlx.Conn {
	t.Helper()
	conn, err := db.Connx(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

// TestLooksAreNotPlannedForAnEmptyQueue: a look by order keys that was planned when nothing was stored reads all that is
// stored for each of them, and can take minutes, whoever analyses the table meanwhile.
func TestLooksAreNotPlannedForAnEmptyQueue(t *testing.T) {
	t.Parallel()
	db, _ := emptied(t)
	conn := connection(t, db)
	looks := make(map[string]*prepared)
	for _, name := range []string{"Queue.SelectFront", "Queue.SelectHeads", "Queue.SelectOpen", "PurgeActivity", "PurgeDropped", "PurgeLeases"} {
		looks[name] = prepare(t, db, conn, name)
		for range 10 { // a plan is kept from the sixth time on
			looks[name].plan(t)
		}
	}
	crowd(t, db)
	for name, look := range looks {
		plan := look.plan(t)
		assert.NotContains(t, plan, "Seq Scan", "%s\n%s", name, plan)
	}
}

// TestStatisticsAreTakenOfTablesThatFillUp: so that no connection goes on by plans that it made when they were empty.
func TestStatisticsAreTakenOfTablesThatFillUp(t *testing.T) {
	t.Parallel()
	db, store := emptied(t)
	defer rig.Work(t, store)() // whose janitor finds nothing

	conn := connection(t, db)
	_, err := conn.ExecContext(t.Context(), `SET plan_cache_mode = force_generic_plan`) // else from the sixth time on
	require.NoError(t, err)
	// Without the arguments at hand these seem to want most of a table.
	much := []string{"Queue.SelectOpen", "SelectActivity", "PurgeActivity", "PurgeDropped", "PurgeLeases"}
	kept := make(map[string]*prepared)
	for name := range hot {
		if !strings.HasPrefix(name, "Outbox.") && !slices.Contains(much, name) {
			kept[name] = prepare(t, db, conn, name)
			kept[name].plan(t)
		}
	}
	for _, name := range []string{"Lookup", "Queue.CloseLeased", "Queue.SelectSettled", "Gate.AdvanceAggregate"} {
		if version(t, db) < 14 { // which takes an empty table for one of ten pages
			break
		}
		require.Contains(t, kept[name].plan(t), "Seq Scan", name)
	}
	crowd(t, db)
	var scans string
	defer func() {
		if t.Failed() {
			t.Log(scans)
		}
	}()
	rig.Eventually(t, "each is planned anew, and uses an index", func() bool {
		for name, statement := range kept {
			if plan := statement.plan(t); strings.Contains(plan, "Seq Scan") {
				scans = name + "\n" + plan
				return false
			}
		}
		return true
	})
}

// TestStatisticsAreAskedForWhereTheyLag, once, and of a role that may take them. The server would log a warning of
// any other.
func TestStatisticsAreAskedForWhereTheyLag(t *testing.T) {
	t.Parallel()
	db, _ := emptied(t)
	conn := connection(t, db)
	outgrown := func() (statements []string) {
		require.NoError(t, conn.SelectContext(t.Context(), &statements, dialectOf(t, db).SelectOutgrown))
		return statements
	}
	crowd(t, db)
	rig.Eventually(t, "the server knows how many rows there are", func() bool { return len(outgrown()) == 17 })
	assert.False(t, slices.ContainsFunc(outgrown(), func(s string) bool { return strings.Contains(s, "outbox") }))

	_, err := conn.ExecContext(t.Context(), `SET ROLE pg_monitor`)
	require.NoError(t, err)
	assert.Empty(t, outgrown())
	_, err = conn.ExecContext(t.Context(), `RESET ROLE`)
	require.NoError(t, err)

	for _, statement := range outgrown() {
		db.Do(t, statement)
	}
	assert.Empty(t, outgrown())
}

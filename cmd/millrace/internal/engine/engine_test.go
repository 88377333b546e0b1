package engine_test

import (
	"context"
	"database/sql"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/engine"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(6)
	m.Run()
}

// The names of features.
const (
	made      = "the tables can be made"
	exclude   = "migrations exclude each other"
	counted   = "a duplicate is counted as one"
	committed = "a copy waits, and after a commit is a duplicate"
	undone    = "a copy waits, and after a rollback has the claim"
	rereads   = "a transaction at READ COMMITTED sees later commits"
	newRow    = "a write that waited works on the new row"
	byBytes   = "keys are compared byte by byte"
	leases    = "a lease is kept until it ends"
	skips     = "locked rows are skipped"
	failing   = "a failed statement fails its transaction"
	ends      = "the end of a transaction is noticed"
	ids       = "ids grow in the order of transactions"
	clock     = "all connections have one clock"
	once      = "the inbox handles a message once"
	advances  = "one statement claims and advances"
	relay     = "the relay sends in the order of a key"
	queue     = "the queue tries a failed message again"
	notices   = "notices arrive"
)

// atLeisure is how long a busy machine may need for a transaction that need not wait.
const atLeisure = 10 * time.Second

// trial runs the tries and returns the features. It checks that no table is left.
func trial(t *testing.T, db *testdb.DB, with engine.Trial, pools ...*sqlx.DB) []engine.Feature {
	t.Helper()
	with.Pools, with.Dialect = pools, db.Dialect
	features, err := with.Run(t.Context())
	require.NoError(t, err)
	catalogue := `SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'millrace!_try!_%' ESCAPE '!'`
	if db.Dialect == "mysql" {
		catalogue += ` AND table_schema = DATABASE()`
	}
	assert.Zero(t, db.Count(t, catalogue))
	return features
}

// unfit returns what was found of each feature that is not fit.
func unfit(features []engine.Feature) (names []string, found map[string]string) {
	found = map[string]string{}
	for _, f := range features {
		if f.Verdict != engine.Fit {
			names, found[f.Name] = append(names, f.Name), string(f.Verdict)+": "+f.Found
		}
	}
	return names, found
}

func TestTheServersOfTheTestsAreFit(t *testing.T) {
	t.Parallel()
	for dialect, number := range map[string]int{"postgres": 19, "mysql": 15} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, dialect, testdb.Empty())
			features := trial(t, db, engine.Trial{}, db.DB, db.Open(t).DB)
			assert.Len(t, features, number)
			names, found := unfit(features)
			assert.Empty(t, names, found)
		})
	}
}

// replaced returns a rewrite that replaces what matches in each statement that contains a text.
func replaced(in, pattern, by string) func(int64, string) string {
	re := regexp.MustCompile(pattern)
	return func(_ int64, query string) string {
		if strings.Contains(query, in) {
			return re.ReplaceAllString(query, by)
		}
		return query
	}
}

// lacks are servers without something, and what they are unfit for.
var lacks = map[string]struct {
	dialect string
	params  []string
	wait    time.Duration
	other   func(db *testdb.DB) *other
	unfit   []string
	says    string // of the first
	either  string // may be unfit or not
}{
	"PL/pgSQL": {dialect: "postgres", other: rewriting(`DO $$`, `DO \$\$`, `DON'T`), unfit: []string{made}, says: "syntax error"},
	"advisory locks": {
		dialect: "postgres", other: rewriting(`pg_advisory_xact_lock`, `pg_advisory_xact_lock\(.*`, `1`),
		unfit: []string{exclude}, says: "does not wait",
	},
	"ON CONFLICT DO NOTHING": {
		dialect: "postgres", other: rewriting(`_claims (consumer`, `DO NOTHING`, `DO UPDATE SET token = EXCLUDED.token`),
		unfit: []string{counted, committed, once, advances, queue}, says: "claim 2 of a key counts 1 new rows",
	},
	"conflicts": { // each claim stores another key
		dialect: "postgres", other: rewriting(`_claims (consumer`, `VALUES \(\$1, \$2,`, `VALUES ($$1, $$2 || convert_to(random()::TEXT, 'UTF8'),`),
		unfit: []string{counted, committed, undone, rereads, newRow, skips, once, advances, queue}, says: "claim 2 of a key",
	},
	"patience": {
		dialect: "postgres", params: []string{"lock_timeout", "10"}, unfit: []string{exclude, committed, undone, newRow},
		says: "fails while the first is open",
	},
	"patience on MariaDB": {
		dialect: "mysql", params: []string{"innodb_lock_wait_timeout", "1"}, wait: 4 * time.Second, unfit: []string{committed, undone, newRow},
		says: "fails while the first is open",
	},
	"rollback": {
		dialect: "postgres", other: func(*testdb.DB) *other { return &other{commits: true} },
		unfit: []string{undone}, says: "nobody has the claim",
	},
	"READ COMMITTED": {
		dialect: "postgres", other: func(*testdb.DB) *other { return &other{level: sql.LevelRepeatableRead} },
		unfit: []string{rereads}, says: "READ COMMITTED",
	},
	"READ COMMITTED on MariaDB": {
		dialect: "mysql", other: func(*testdb.DB) *other { return &other{level: sql.LevelRepeatableRead} },
		unfit: []string{rereads}, says: "READ COMMITTED",
	},
	"a look at the row after the wait": {
		dialect: "postgres", other: rewriting(`result = 0 THEN`, `THEN \S+\.token \+ 1`, `THEN 2`),
		unfit: []string{newRow}, says: "a change was lost: 1 was raised twice to 2",
	},
	"keys of bytes": {
		dialect: "mysql", other: preparing(`ALTER TABLE {prefix}claims MODIFY message_id VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_swedish_ci`),
		unfit: []string{byBytes}, says: `"KEY" counts as the same key`,
	},
	"a condition of an upsert": {
		dialect: "postgres", other: rewriting(`EXCLUDED.until`, `(?s)\s+WHERE .*`, ``),
		unfit: []string{leases}, says: "is given to another holder",
	},
	"SKIP LOCKED": {
		dialect: "postgres", other: rewriting(`FOR UPDATE`, ` SKIP LOCKED`, ``), unfit: []string{skips}, says: "waited for",
	},
	"SKIP LOCKED on MariaDB": {
		dialect: "mysql", other: rewriting(`FOR UPDATE`, ` SKIP LOCKED`, ``), unfit: []string{skips}, says: "waited for",
	},
	"the failure of a transaction": {
		dialect: "postgres", other: rewriting(`nowhere`, `(?s).*`, `SELECT 1`), unfit: []string{failing}, says: "is committed without an error",
	},
	"the guard of the outbox": {
		dialect: "mysql", other: rewriting(`@@in_transaction`, `/\*M!.*?\*/`, ``), unfit: []string{ends}, says: "a message is stored",
	},
	"one sequence of ids": {
		dialect: "postgres", other: preparing(`ALTER SEQUENCE {prefix}outbox_id_seq CACHE 50`), unfit: []string{ids}, says: "got the id",
	},
	"one sequence of ids on MariaDB": {
		dialect: "mysql",
		other: preparing(`CREATE TRIGGER {prefix}node BEFORE INSERT ON {prefix}outbox FOR EACH ROW
			SET NEW.id = CONNECTION_ID() % 8 * 1000000 + TIMESTAMPDIFF(MICROSECOND, CURRENT_DATE, UTC_TIMESTAMP(6)) % 1000000`),
		unfit: []string{ids}, says: "got the id", either: relay, // unfit if two of its messages come from two connections, or a second apart
	},
	"one clock": {
		dialect: "postgres", other: func(*testdb.DB) *other {
			return &other{rewrite: func(connection int64, query string) string {
				if connection%2 == 0 && strings.HasPrefix(query, "SELECT (EXTRACT") {
					return query + ` - 1000000`
				}
				return query
			}}
		},
		unfit: []string{clock}, says: "apart",
	},
	"a clock that goes on": {
		dialect: "postgres", other: rewriting(`clock_timestamp`, `clock_timestamp`, `now`), unfit: []string{clock}, says: "stands still",
	},
	"a statement of the inbox": {
		dialect: "postgres", other: rewriting(`purge_line`, `^\s*SELECT`, `SELECTS`), unfit: []string{failing, ends, once, queue}, says: "syntax error",
	},
	"a condition on what the same statement has inserted": {
		dialect: "postgres", other: rewriting(`advanced AS`, ` AND EXISTS \(SELECT 1 FROM claimed\)`, ``), unfit: []string{advances},
		says: "statement 2 reports 1 rows instead of 0, and leaves version 3 instead of 2",
	},
	"a statement of the relay": {
		dialect: "postgres", other: rewriting(`json_array_elements_text`, `json_array_elements_text`, `nothing`),
		unfit: []string{relay}, says: "has not sent",
	},
	"a statement of the queue": {
		dialect: "postgres", other: rewriting(`, lease_token = `, `UPDATE`, `UPDATES`), unfit: []string{queue}, says: "not tried again",
	},
}

func rewriting(in, pattern, by string) func(*testdb.DB) *other {
	return func(*testdb.DB) *other { return &other{rewrite: replaced(in, pattern, by)} }
}

func preparing(statement string) func(*testdb.DB) *other {
	return func(db *testdb.DB) *other {
		return &other{prepared: func(ctx context.Context, prefix string) error {
			_, err := db.ExecContext(ctx, strings.ReplaceAll(statement, "{prefix}", prefix))
			return err
		}}
	}
}

// TestWhatAServerLacksIsNamed takes something from a server: the features that need it are unfit, and no other. Usually
// it takes a third of what there is, another third from day to day.
func TestWhatAServerLacksIsNamed(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{notices: true} // by TestBehindAPoolerNoNoticeArrives
	for _, lack := range lacks {
		for _, f := range lack.unfit {
			tried[f] = true
		}
	}
	assert.Len(t, tried, 19, "each feature can be unfit")
	for _, name := range testdb.Sample(t, len(lacks)/6, slices.Sorted(maps.Keys(lacks))) {
		lack := lacks[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, lack.dialect, testdb.Empty(), testdb.Params(lack.params...))
			server := &other{}
			if lack.other != nil {
				server = lack.other(db)
			}
			pool := server.over(db)
			defer pool.Close() //nolint:errcheck // the test has ended
			features := func(with engine.Trial) []engine.Feature {
				with.Prepared = server.prepared
				return slices.DeleteFunc(trial(t, db, with, pool), func(f engine.Feature) bool {
					return f.Name == notices || f.Name == lack.either // other does not pass notices on
				})
			}
			last := features(engine.Trial{Wait: lack.wait, Patience: 5 * time.Second})
			names, found := unfit(last)
			if !slices.Equal(lack.unfit, names) {
				last = features(engine.Trial{Wait: atLeisure})
				names, found = unfit(last)
			}
			assert.Equal(t, lack.unfit, names, found)
			assert.Contains(t, found[lack.unfit[0]], lack.says)
			for _, f := range last {
				if f.Verdict != engine.Fit {
					assert.NotEmpty(t, f.Remedy, f.Name)
					assert.NotEmpty(t, f.For, f.Name)
				}
			}
		})
	}
}

// TestConflictsAtCommit: a server may let two transactions go on, and end one at its COMMIT, as Galera does with two nodes.
func TestConflictsAtCommit(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	pool := (&other{delays: "DO NOTHING"}).over(db)
	defer pool.Close() //nolint:errcheck // the test has ended
	want, late := []string{committed, undone}, []string{}
	for _, wait := range []time.Duration{0, atLeisure} {
		late = nil
		for _, f := range trial(t, db, engine.Trial{Wait: wait}, pool) {
			if f.Verdict == engine.AtCommit {
				late = append(late, f.Name)
				assert.Contains(t, f.Found, "one of the two fails at its COMMIT")
				assert.NotEmpty(t, f.Remedy)
			}
		}
		if slices.Equal(want, late) {
			break
		}
	}
	assert.Equal(t, want, late)
}

func TestBehindAPoolerNoNoticeArrives(t *testing.T) {
	t.Parallel()
	pg := servers.Postgres(t).DSN()
	db := testdb.At(t, "postgres", pg)
	pooled := db.Open(t, testdb.Via(servers.PgBouncer(t, pg, "server_round_robin = 1").Addr()), testdb.Params("default_query_exec_mode", "exec"))
	names, found := unfit(trial(t, db, engine.Trial{}, pooled.DB))
	assert.Equal(t, []string{notices}, names, found)
	assert.Contains(t, found[notices], "does not arrive")
}

// TestAnInterruptedTrialDropsItsTables and says that it was interrupted.
func TestAnInterruptedTrialDropsItsTables(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, "postgres", testdb.Empty())
	ctx, interrupt := context.WithCancel(t.Context())
	_, err := (&engine.Trial{Pools: []*sqlx.DB{db.DB}, Dialect: "postgres", Prepared: func(context.Context, string) error {
		interrupt()
		return nil
	}}).Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, db.Count(t, `SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'millrace!_try!_%' ESCAPE '!'`))
}

package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

const (
	inFlight = 16
	pool     = inFlight + 4 // connections, open and idle, on every side
	accounts = 10_000
)

// What every side says to the server between BEGIN and COMMIT.
var (
	claim  = dialect.For(dialect.PostgresName, dialect.Names{Prefix: dialect.DefaultPrefix}).Claim
	update = `UPDATE bench_account SET balance = balance + 1 WHERE id = $1`
)

// database is a fresh one with Millrace's tables and some accounts. Autovacuum keeps off
// the tables: it would hit one side of a pair and not the other.
func database(b *testing.B) *testdb.DB {
	b.Helper()
	db := testdb.On(b, dialect.PostgresName, testdb.Pool(pool))
	require.NoError(b, newStore(b, db).Migrate(b.Context()))
	run(b, db,
		`CREATE TABLE bench_account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL) WITH (fillfactor = 50)`,
		`INSERT INTO bench_account SELECT i, 0 FROM generate_series(1, `+strconv.Itoa(accounts)+`) i`,
		`ALTER TABLE bench_account SET (autovacuum_enabled = off)`,
		`ALTER TABLE millrace_claims SET (autovacuum_enabled = off)`)
	return db
}

func newStore(b *testing.B, db *testdb.DB) *inbox.Store {
	b.Helper()
	store := rig.NewStore(b, db.DB, inbox.Config{WithoutPlugin: true})
	b.Cleanup(func() { _ = store.Close(b.Context()) })
	return store
}

// settleDown brings the server to the same state before each phase.
func settleDown(b *testing.B, db *testdb.DB) {
	b.Helper()
	run(b, db, `VACUUM ANALYZE bench_account`, `CHECKPOINT`)
}

func run(b *testing.B, db *testdb.DB, statements ...string) {
	b.Helper()
	for _, s := range statements {
		db.Do(b, s)
	}
}

var pgbenchRate = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

// pgbench says the same four statements from as many clients, in the protocol that pgx
// uses by default, and returns its transactions per second without connecting.
func pgbench(b *testing.B, db *testdb.DB, protocol string, d time.Duration) float64 {
	b.Helper()
	key := `('\x01'::BYTEA || uuid_send(gen_random_uuid()))`
	script := "\\set account random(1, " + strconv.Itoa(accounts) + ")\n" +
		"\\set hash random(1, 1000000000000)\n" +
		"\\set token random(1, 1000000000000)\n" +
		"BEGIN;\n" +
		strings.NewReplacer("$1", "7", "$2", key, "$3", ":hash", "$4", ":token").Replace(claim) + ";\n" +
		strings.ReplaceAll(update, "$1", ":account") + ";\n" +
		"COMMIT;\n"
	file := filepath.Join(b.TempDir(), "four.sql")
	require.NoError(b, os.WriteFile(file, []byte(script), 0o600))
	args := []string{"-n", "-M", protocol, "-c", strconv.Itoa(inFlight), "-j", "2", "-f", file}
	if d < time.Second {
		args = append(args, "-t", "50")
	} else {
		args = append(args, "-T", strconv.Itoa(int(d.Seconds())))
	}
	args = append(args, db.DSN)
	out, err := exec.CommandContext(b.Context(), "pgbench", args...).CombinedOutput()
	require.NoError(b, err, string(out))
	found := pgbenchRate.FindSubmatch(out)
	require.NotNil(b, found, string(out))
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(b, err)
	return rate
}

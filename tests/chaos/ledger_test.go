package chaos_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// ledger is what the members wrote down in the transactions of their work.
type ledger struct {
	testing.TB
	db *testdb.DB
}

// newLedger makes the tables of the members too.
func newLedger(t testing.TB, db *testdb.DB) *ledger {
	t.Helper()
	l := &ledger{t, db}
	store := rig.NewStore(t, db.DB, inbox.Config{})
	require.NoError(t, store.Migrate(t.Context()))
	schema, err := watermillsql.Schema(db.Dialect, receipts)
	require.NoError(t, err)
	for _, statement := range strings.SplitAfter(schema, ";\n") { // MariaDB takes one at a time
		if strings.TrimSpace(statement) != "" {
			l.must(statement)
		}
	}
	serial := map[string]string{"postgres": "BIGSERIAL", "mysql": "BIGINT AUTO_INCREMENT"}[db.Dialect]
	for _, table := range []string{"produced", "applied", "booked", "summed"} {
		l.must(`CREATE TABLE ` + table + ` (seq ` + serial + ` PRIMARY KEY, id CHAR(36) NOT NULL, account INT NOT NULL,
			version BIGINT NOT NULL, amount INT NOT NULL, uuid CHAR(36) NOT NULL, member VARCHAR(40) NOT NULL)`)
		l.must(`CREATE INDEX ` + table + `_id ON ` + table + ` (id)`)
	}
	l.must(`CREATE TABLE heads (account INT PRIMARY KEY, version BIGINT NOT NULL)`)
	l.must(`CREATE TABLE balances (account INT PRIMARY KEY, applied BIGINT NOT NULL, booked BIGINT NOT NULL)`)
	l.must(`CREATE TABLE sums (account INT PRIMARY KEY, summed BIGINT NOT NULL)`)
	for account := range accounts {
		l.must(fmt.Sprintf(`INSERT INTO sums VALUES (%d, 0)`, account))
		l.must(fmt.Sprintf(`INSERT INTO heads VALUES (%d, 0)`, account))
		l.must(fmt.Sprintf(`INSERT INTO balances VALUES (%d, 0, 0)`, account))
	}
	return l
}

func (l *ledger) must(statement string) {
	l.Helper()
	l.db.Do(l, statement)
}

// count returns what a query counts. Connections from before a fault may be broken.
func (l *ledger) count(query string) (n int) {
	l.Helper()
	var err error
	for range 20 { // more than there are
		if err = l.db.GetContext(l.Context(), &n, query); err == nil {
			return n
		}
	}
	require.NoError(l, err, query)
	return n
}

func (l *ledger) rows(table string) int { return l.count(`SELECT COUNT(*) FROM ` + table) }

// patience is how long nothing moves before it is stuck: longer than any lease or pause.
const patience = time.Minute

// settle waits until everything has arrived and nothing is open, or nothing moves any more,
// and returns what is stuck then.
func (l *ledger) settle() (stuck map[string]int) {
	l.Helper()
	moved, look := time.Now(), time.NewTicker(200*time.Millisecond)
	defer look.Stop()
	for {
		left := l.open()
		if len(left) == 0 || time.Since(moved) > patience {
			return left
		}
		if !maps.Equal(left, stuck) {
			stuck, moved = left, time.Now()
		}
		<-look.C
	}
}

// open counts what is still on its way.
func (l *ledger) open() map[string]int {
	l.Helper()
	open := map[string]int{
		"transfers to apply":              l.rows("produced") - l.distinct("applied"),
		"receipts to book":                l.rows("applied") - l.distinct("booked"),
		"transfers to sum up":             l.rows("produced") - l.distinct("summed"),
		"messages in the outbox":          l.rows("millrace_outbox"),
		"open messages in the inbox":      l.rows("millrace_messages"),
		"outcomes that are not published": l.rows("millrace_outcomes"),
	}
	maps.DeleteFunc(open, func(_ string, n int) bool { return n <= 0 }) // what should not be is in the audit
	return open
}

func (l *ledger) distinct(table string) int {
	return l.count(`SELECT COUNT(DISTINCT id) FROM ` + table)
}

// wrongs are the queries that count what must not be, by what it is called.
var wrongs = []struct{ what, query string }{
	{"transfers lost", `SELECT COUNT(*) FROM produced p WHERE NOT EXISTS (SELECT 1 FROM applied a WHERE a.id = p.id)`},
	{"receipts lost", `SELECT COUNT(*) FROM applied a WHERE NOT EXISTS (SELECT 1 FROM booked b WHERE b.id = a.id)`},
	{"transfers lost in batches", `SELECT COUNT(*) FROM produced p WHERE NOT EXISTS (SELECT 1 FROM summed s WHERE s.id = p.id)`},
	{"transfers doubled in batches", `SELECT COUNT(*) - COUNT(DISTINCT id) FROM summed`},
	{"transfers in batches from a transaction that was rolled back", `
		SELECT COUNT(*) FROM summed s WHERE NOT EXISTS (SELECT 1 FROM produced p WHERE p.id = s.id)`},
	{"accounts with a wrong sum", `
		SELECT COUNT(*) FROM sums s WHERE s.summed <> (SELECT COALESCE(SUM(amount), 0) FROM produced p WHERE p.account = s.account)`},
	{"transfers doubled", `SELECT COUNT(*) - COUNT(DISTINCT id) FROM applied`},
	{"receipts doubled", `SELECT COUNT(*) - COUNT(DISTINCT id) FROM booked`},
	{"receipts with two UUIDs", `SELECT COUNT(DISTINCT uuid) - COUNT(DISTINCT id) FROM booked`},
	{"transfers from a transaction that was rolled back", `
		SELECT COUNT(*) FROM applied a WHERE NOT EXISTS (SELECT 1 FROM produced p WHERE p.id = a.id)`},
	{"receipts from a transaction that was rolled back", `
		SELECT COUNT(*) FROM booked b WHERE NOT EXISTS (SELECT 1 FROM applied a WHERE a.id = b.id)`},
	{"versions applied out of order", outOfOrder("applied")},
	{"receipts booked out of order", outOfOrder("booked")},
	{"accounts with a wrong balance", `
		SELECT COUNT(*) FROM balances b WHERE b.applied <> b.booked
			OR b.applied <> (SELECT COALESCE(SUM(amount), 0) FROM produced p WHERE p.account = b.account)`},
}

// outOfOrder counts the entries that do not follow the version before theirs.
func outOfOrder(table string) string {
	return `SELECT COUNT(*) FROM (SELECT version, COALESCE(LAG(version) OVER (PARTITION BY account ORDER BY seq), 0) AS previous
		FROM ` + table + `) entries WHERE version <> previous + 1`
}

// audit returns how much there is of each wrong.
func (l *ledger) audit() map[string]int {
	l.Helper()
	found := map[string]int{}
	for _, w := range wrongs {
		found[w.what] = l.count(w.query)
	}
	return found
}

// explain prints the entries that are out of order.
func (l *ledger) explain() {
	l.Helper()
	for _, table := range []string{"applied", "booked"} {
		var entries []struct {
			Seq, Account, Version, Previous int64
			ID, Member                      string
		}
		err := l.db.SelectContext(l.Context(), &entries, `SELECT seq, account, version, previous, id, member FROM (
			SELECT seq, account, version, id, member, COALESCE(LAG(version) OVER (PARTITION BY account ORDER BY seq), 0) AS previous
			FROM `+table+`) entries WHERE version <> previous + 1 ORDER BY seq LIMIT 40`)
		if err != nil {
			l.Logf("%s: %v", table, err)
		}
		for _, e := range entries {
			l.Logf("%s out of order: %+v", table, e)
		}
	}
}

package tests_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/outbox/relayproc"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

// seconds are tests that take seconds and stand beside bodies that run every day: some have their turn each day.
var seconds = []string{
	"TestNoStatementOfAQueueCostsWhatABacklogHolds", "TestConformanceThroughPgBouncer",
}

// upgrades are tests that build the release before.
var upgrades = []string{
	"TestRollingUpgrade", "TestRollingUpgradeOfRelays", "TestRollingUpgradeOfEveryRow",
}

func TestMain(m *testing.M) {
	process.Main()
	relayproc.Main()
	testdb.Overlap(8)
	registerRunning()
	code := m.Run()
	_ = os.RemoveAll(builds)
	_ = os.RemoveAll(source)
	os.Exit(code)
}

// conformanceBodies is every behaviour that touches SQL.
var conformanceBodies = slices.Concat(deliveryBodies, keyBodies, twinBodies, transactionBodies,
	duplicateBodies, outcomeBodies, leftToOutboxBodies, parkingBodies, retentionBodies, archiveBodies, inputBodies, orderBodies,
	replayBodies, importBodies, pluginBodies, lostBodies, failedCommitBodies, formerBodies, panicBodies, panicOutboxBodies, panicBackgroundBodies)

// TestConformance runs every behaviour that touches SQL on every database.
func TestConformance(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, conformanceBodies)
}

// The bodies of TestConformance run at each server's default isolation; here those in which
// copies meet run at the others. SQLite knows one level only.
func TestTwinsAtEveryIsolation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dialect, level string // the level of connections that ask for nothing
		params         []string
	}{
		{"postgres", "read committed", nil},
		{"postgres", "repeatable read", []string{"default_transaction_isolation", "repeatable read"}},
		{"postgres", "serializable", []string{"default_transaction_isolation", "serializable"}},
		{"mysql", "repeatable read", nil},
		{"mysql", "read committed", []string{"tx_isolation", "'READ-COMMITTED'"}},
		{"mysql", "serializable", []string{"tx_isolation", "'SERIALIZABLE'"}},
	} {
		t.Run(c.dialect+"/"+c.level, func(t *testing.T) {
			t.Parallel()
			on := func(t *testing.T) *testdb.DB { return testdb.On(t, c.dialect, testdb.Params(c.params...)) }
			t.Run("level", func(t *testing.T) { levels(newBed(t, on(t)), c.level) })
			if c.params == nil {
				return // the bodies ran so already
			}
			for _, body := range slices.Concat(isolationBodies, twinBodies) {
				t.Run(body.Name, func(t *testing.T) {
					t.Parallel()
					body.Run(t, on(t))
				})
			}
		})
	}
}

// levels checks that the connection is at a level, and the handler at READ COMMITTED.
func levels(b *bed, level string) {
	ask := `SELECT current_setting('transaction_isolation')`
	if b.db.Dialect == "mysql" {
		ask = `SELECT @@` + b.db.Variable("tx_isolation")
	}
	read := func(get func(dest any, query string, args ...any) error, query string) (level string) {
		require.NoError(b, get(&level, query))
		return strings.ReplaceAll(strings.ToLower(level), "-", " ")
	}
	assert.Equal(b, level, read(b.db.Get, ask), "of a connection")
	var before, after int
	must(b, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return nil, err
		}
		if b.db.Dialect == "postgres" { // the variable of MySQL and MariaDB does not tell what one transaction asked for
			assert.Equal(b, "read committed", read(tx.Get, ask), "of a handler")
		}
		require.NoError(b, tx.Get(&before, `SELECT COUNT(*) FROM effects`))
		b.exec(`INSERT INTO effects (uuid, consumer) VALUES ('meanwhile', '')`)
		return nil, tx.Get(&after, `SELECT COUNT(*) FROM effects`)
	}), newMessage("x"))
	assert.Equal(b, before+1, after, "a handler sees what was committed since its first statement")
}

// isolationBodies: the deliveries in which levels could make a difference.
var isolationBodies = []testdb.Body{
	bodyNamed("duplicate in another process"),
	bodyNamed("error then success"),
	bodyNamed("copies wait for a failing first"),
}

func bodyNamed(name string) testdb.Body {
	i := slices.IndexFunc(conformanceBodies, func(b testdb.Body) bool { return b.Name == name })
	return conformanceBodies[i]
}

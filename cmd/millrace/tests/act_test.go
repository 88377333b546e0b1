package tests_test

import (
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// acts are calls that mend something, one after the other, by the file of what they print.
var acts = []struct {
	name string
	args []string
}{
	{"list-payload", []string{"list", "--status", "failed-terminal", "--payload", "--reason", "which account?", "--by", "ada"}},
	{"explain-retryable", []string{"explain", id(3), "--payload", "--reason", "which account?", "--by", "ada"}},
	{"explain-result", []string{"explain", id(20), "--payload", "--reason", "was it mailed?", "--by", "ada"}},
	{"outbox-list-json", []string{"outbox", "list", "--limit", "1", "--json", "--payload", "--reason", "which account?", "--by", "ada"}},
	{"explain-revealed", []string{"explain", id(3)}},
	{"pause", []string{"pause", "billing", "--reason", "the bank is down", "--by", "ada", "--yes"}},
	{"pause-status", []string{"status"}},
	{"resume-proposed", []string{"resume", "billing", "--reason", "the bank is back", "--by", "ada"}},
	{"resume", []string{"resume", "billing", "--reason", "the bank is back", "--by", "ada", "--yes"}},
	{"retry", []string{"retry", "4", "--reason", "the bank is back", "--by", "ada", "--yes"}},
	{"retry-key", []string{"retry", id(5), "--consumer", "billing", "--reason", "the bank is back", "--by", "ada", "--yes"}},
	{"retry-all", []string{
		"retry", "--all-matching", "--group", "3411", "--status", "parked", "--reason", "the rest", "--by", "ada", "--yes", "--json",
	}},
	{"explain-retried", []string{"explain", id(4)}},
	{"payload", []string{"payload", "replace", "7", "--file", "testdata/corrected.json", "--reason", "it was cut off", "--by", "ada", "--yes"}},
	{"payload-again", []string{"payload", "replace", "7", "--file", "testdata/corrected.json", "--reason", "x", "--by", "ada", "--yes", "-o", "yaml"}},
	{"discard", []string{"discard", "7", "--reason", "a test message", "--by", "ada", "--yes"}},
	{"explain-discarded", []string{"explain", id(7)}},
	{"retry-through-outbox", []string{"retry", "10", "--reason", "it is another one", "--by", "ada", "--yes", "--through-outbox"}},
	{"outbox-retry", []string{"outbox", "retry", "1", "--reason", "the exchange is there", "--by", "ada", "--yes"}},
	{"outbox-discard", []string{"outbox", "discard", "--all-matching", "--topic", "payments", "--reason", "x", "--by", "ada", "--yes"}},
	{"steps-decide", []string{"steps", "decide", doubtfulStep, "--not-done", "--reason", "the bank has not seen it", "--by", "ada", "--yes"}},
	{"steps-decide-again", []string{"steps", "decide", doubtfulStep, "--done", "--reason", "x", "--by", "ada", "--yes"}},
	{"redispatch", []string{"redispatch", "--reason", "its process died", "--by", "ada", "--yes"}},
	{"redispatch-again", []string{"redispatch", id(21), "--age", "0s", "--reason", "its process died", "--by", "ada", "--yes"}},
	{"skip-gap", []string{"skip-gap", "billing", "account 17", "--missing", "4", "--reason", "the producer skipped it", "--by", "ada", "--yes"}},
	{"skip-gap-again", []string{"skip-gap", "billing", "account 17", "--missing", "4", "--reason", "x", "--by", "ada", "--yes"}},
	{"outbox-list-empty", []string{"outbox", "list"}},
	{"audit", []string{"audit", "--by", "ada", "--since", "1h", "--limit", "3"}},
	{"audit-filter-json", []string{"audit", "--consumer", "billing", "--action", "pause", "--until", "2100-01-01", "--json"}},
	{"audit-nobody", []string{"audit", "--by", "bob"}},
	{"audit-bulk", []string{"audit", "--action", "retry", "-o", "csv"}},
	{"audit-entry", []string{"audit", "11"}},
	{"audit-entry-json", []string{"audit", "11", "--json"}},
	{"audit-entry-csv", []string{"audit", "11", "-o", "csv"}},
	{"audit-entry-unknown", []string{"audit", "1000"}},
	{"audit-prune-proposed", []string{"audit", "prune", "--before", "1h"}},
	{"audit-prune", []string{"audit", "prune", "--before", "1h", "--reason", "an hour is enough", "--by", "ada", "--yes"}},
}

func TestWhatItMends(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.serve()
		for _, act := range acts {
			if act.name == "discard" {
				assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_messages WHERE id = 7 AND payload = ?`, []byte("{\"order\":7,\"secret\":\"Corr3cted\"}\n")))
			}
			golden(t, act.name, act.args, s.run(act.args...))
		}
		open := func(status admin.Status) int {
			return s.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, status)
		}
		assert.Equal(t, 5, open(admin.FailedRetryable), "four were parked")
		assert.Zero(t, open(admin.FailedTerminal))
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 2`))
		assert.Equal(t, s.count(`SELECT COUNT(*) FROM millrace_audit`),
			s.count(`SELECT COUNT(*) FROM millrace_audit WHERE actor = ?`, []byte("ada")))
		s.viewsMatch()
	}))
}

// TestAnActionThatEndsHalfway does not say that nothing was changed.
func TestAnActionThatEndsHalfway(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	why := []string{"--reason", "x", "--yes"}
	r := s.run(append([]string{"discard", "8", "4"}, why...)...)
	assert.Equal(t, 5, r.code, "nothing was changed, since row 8 is held")
	r = s.run(append([]string{"discard", "4", "8", "5"}, why...)...)
	assert.Equal(t, 1, r.code, r.err)
	assert.Equal(t, "1 message discarded\n", r.out)
	assert.Contains(t, r.err, "millrace: 1 message discarded; then inbox: ")
	assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_audit`))
	assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_messages WHERE id = 5`), "it came after the one that failed")
}

func TestAMessageThatIsNamedTwiceIsTakenOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	assert.Contains(t, s.run("discard", "5", "6", "5").out, "2 messages would be discarded")
	for says, args := range map[string][]string{
		"1 message discarded\n":                         {"discard", "4", "4"},
		"2 messages discarded\n":                        {"discard", id(5), id(6), id(5), "--id", "5", "--consumer", "billing"},
		"2 messages deleted\n":                          {"outbox", "discard", "1", "2", "1"},
		"1 message of 1 outcome stored in the outbox\n": {"redispatch", id(21), id(21)},
	} {
		r := s.run(append(args, "--reason", "x", "--yes")...)
		assert.Zero(t, r.code, r.err)
		assert.Equal(t, says, r.out)
	}
	assert.Contains(t, s.run("redispatch", id(21), id(21), "--age", "0s").err, "no outcome")
}

func TestRetryThroughTheOutbox(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		r := s.run("retry", "4", "5", "--through-outbox", "--reason", "no queue", "--yes")
		require.Zero(t, r.code, r.err)
		assert.Equal(t, 2, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = 'orders' AND status = 0 AND uuid IN (?, ?)`, id(4), id(5)))
		r = s.run("retry", "--all-matching", "--through-outbox", "--reason", "no queue", "--yes", "--consumer", "billing", "--rate", "50")
		require.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "2 messages to be handled now")
		assert.Equal(t, 4, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = 'orders' AND status = 0`))
	}))
}

func TestAnOutageOfTheBrokerIsShown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.exec(`UPDATE millrace_outbox_relays SET broker_error = ?, broker_out_since = ?`, "dial tcp 127.0.0.1:5672: connect: connection refused", ago(2*day))
		const refused = "dial tcp 127.0.0.1:5672: connect: connection refused\n"
		for says, args := range map[string][]string{
			"PROBLEM                                                           COUNT    SINCE\n" +
				"the broker is out for relay shop-1: dial tcp 127.0.0.1:5672:          4       2d\n  connect: connection refused\n  millrace outbox shards\n": {"status"},
			"\nBroker: out for shop-1 for 2d: nothing gets through: " + refused: {"outbox", "shards"},
		} {
			r := s.run(args...)
			assert.Contains(t, r.out, says, r.err)
			assert.Contains(t, s.run(append(args, "--json")...).out, `"broker_error": "dial tcp`)
		}
	}))
}

// TestADatabaseOfTheReleaseBefore is migrated first, and the command says so.
func TestADatabaseOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.db.DropViews(t)
		s.exec(`ALTER TABLE millrace_outbox_relays DROP COLUMN broker_error`)
		r := s.run("status")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "Create the tables with: millrace migrate")
		assert.Regexp(t, `(?s)^PROBLEM.*outbox: .*\n  millrace check\nbilling: an earlier version is missing.*\nCONSUMER`, r.out, "the rest is shown")
		assert.Zero(t, s.run("list").code)
	}))
}

func TestTheOperatorIsKnown(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	r := s.run("discard", "7", "--reason", "x", "--yes")
	require.Zero(t, r.code, r.err)
	var actor []byte
	require.NoError(t, s.db.GetContext(t.Context(), &actor, `SELECT actor FROM millrace_audit`))
	u, err := user.Current()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(actor), u.Username+"@"), string(actor))
}

func TestPurge(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.exec(`UPDATE millrace_claims SET processed_at = 1 WHERE result = 1`)
		golden(t, "purge-proposed-some", []string{"purge"}, s.run("purge"))
		golden(t, "purge", []string{"purge", "--yes"}, s.run("purge", "--yes"))
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_claims WHERE result = 1`), "its outcome is not settled")
		assert.Positive(t, s.count(`SELECT MAX(purged_at) FROM millrace_consumers`))
	}))
}

// TestExplainFollowsTheOutbox: from waiting to sent, and what it says when nothing is kept.
func TestExplainFollowsTheOutbox(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.exec(`UPDATE millrace_outbox SET status = 4, sent_at = ? WHERE topic = 'invoices'`, time.Now().UnixMicro())
		golden(t, "explain-sent", []string{"explain", id(20)}, s.run("explain", id(20)))
		s.exec(`DELETE FROM millrace_outbox`)
		golden(t, "explain-gone", []string{"explain", id(20)}, s.run("explain", id(20)))
		s.exec(`DELETE FROM millrace_results`)
		s.exec(`UPDATE millrace_claims SET result = 3 WHERE result = 1`) // no handler ran for it
		golden(t, "explain-superseded", []string{"explain", id(20)}, s.run("explain", id(20)))
	}))
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		dry := call(t, db.DSN, "migrate", "--dry-run")
		require.Zero(t, dry.code, dry.err)
		assert.Contains(t, dry.out, "-- migration 1\n")
		assert.Contains(t, dry.out, "millrace_outbox_relays")
		require.NoError(t, db.PingContext(t.Context())) // which makes SQLite's file
		r := call(t, db.DSN, "list")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "Create the tables with: millrace migrate")
		golden(t, "migrate", []string{"migrate"}, call(t, db.DSN, "migrate"))
		golden(t, "migrate-pending-none", []string{"migrate", "--dry-run", "--json"}, call(t, db.DSN, "migrate", "--dry-run", "--json"))
	}, testdb.Empty())
}

// TestWhatMigrateWouldRunCanBeAppliedByHand, by a role that may: it records itself.
func TestWhatMigrateWouldRunCanBeAppliedByHand(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		for statement := range strings.SplitSeq(call(t, db.DSN, "migrate", "--dry-run").out, ";\n") {
			if strings.TrimSpace(statement) != "" {
				db.Do(t, statement)
			}
		}
		golden(t, "migrate-pending-none", []string{"migrate", "--dry-run", "--json"}, call(t, db.DSN, "migrate", "--dry-run", "--json"))
		r := call(t, db.DSN, "migrate")
		assert.Equal(t, "The tables are up to date.\n", r.out, r.err)
	}, testdb.Empty())
}

func TestSchemaNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql", "sqlite"} {
		r := call(t, "", "schema", dialect, "--prefix", "shop_")
		require.Zero(t, r.code, r.err)
		store := rig.NewStore(t, testdb.On(t, dialect).DB, inbox.Config{TablePrefix: "shop_"})
		assert.Equal(t, store.Schema(), r.out)
	}
	golden(t, "schema-unknown", []string{"schema", "oracle"}, call(t, "", "schema", "oracle"))
	golden(t, "schema-none", []string{"schema"}, call(t, "", "schema"))
	r := call(t, "postgres://nobody@127.0.0.1:1/x", "schema")
	assert.Zero(t, r.code, r.err)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		s := newShop(t, documented(t, db))
		for _, c := range []inbox.ConsumerConfig{
			{Name: "facts", Key: inbox.ByPayload(), Options: inbox.Options{Window: time.Hour, Retention: inbox.Forever}},
			{Name: "log", Key: inbox.ByPosition(nil), Options: inbox.Options{Window: time.Hour}},
			{Name: "orders", Key: inbox.ByMetadata("order"), Options: inbox.Options{Window: time.Hour}},
			{Name: "typed", Key: inbox.ByMetadata("order").WithinType(), Options: inbox.Options{Window: time.Hour}},
			{Name: "parts", Key: inbox.Joined(inbox.ByUUID(), inbox.ByPosition(nil)).WithinTopic(), Options: inbox.Options{Window: time.Hour}},
			{Name: "named", Key: inbox.ByFunc("position/topic", nil), Options: inbox.Options{Window: time.Hour}},
			{Name: "short", Options: inbox.Options{Window: 6 * time.Hour, Retention: 2 * time.Hour}},
		} {
			s.register(c)
		}
		s.exec(`UPDATE millrace_consumers SET created_at = created_at - ? WHERE name = ?`,
			(3 * 24 * time.Hour).Microseconds(), []byte("mail"))
		s.exec(`UPDATE millrace_messages SET status = ?, lease_token = 7, due_at = ? WHERE id = 1`, admin.InProgress, ago(time.Hour))
		golden(t, "check", []string{"check"}, s.run("check"))
		assert.Equal(t, 1, s.run("check", "--strict").code)
		s.exec(`DELETE FROM millrace_consumers WHERE name <> ?`, []byte("typed"))
		s.exec(`DELETE FROM millrace_steps`)
		golden(t, "check-good", []string{"check", "--strict"}, s.run("check", "--strict"))
		s.exec(`DROP TABLE millrace_results`)
		r := s.run("check", "--json")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.out, `"severity": "error"`)
	})
}

// register has the store know a consumer.
func (s *shop) register(c inbox.ConsumerConfig) {
	s.Helper()
	source := c.Key.String()
	retention := c.Retention.Microseconds()
	switch c.Retention {
	case 0:
		retention = (7 * 24 * time.Hour).Microseconds()
	case inbox.Forever:
		retention = 0
	}
	s.exec(`INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, created_at)
		VALUES (?, ?, ?, 0, ?, ?, ?, ?)`, len(c.Name)*1000+int(c.Name[0]), []byte{}, []byte(c.Name), []byte(source), retention,
		c.Window.Microseconds(), time.Now().UnixMicro())
}

// documented are the settings that the comment of Store.Check recommends.
func documented(t *testing.T, db *testdb.DB) *testdb.DB {
	t.Helper()
	return db.Open(t, testdb.Params(map[string][]string{
		"postgres": {"idle_in_transaction_session_timeout", "30000", "lock_timeout", "10000"},
		"mysql": {
			"tx_isolation", "'READ-COMMITTED'", "innodb_lock_wait_timeout", "10", "idle_write_transaction_timeout", "30",
		},
	}[db.Dialect]...))
}

// TestAnyKeyNamesItsMessage: also one so long that a hash of it is stored, and what is shown of it.
func TestAnyKeyNamesItsMessage(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.serve()
		queue := rig.Queue(t, s.store, inbox.QueueConfig{Consumer: "billing"})
		long := strings.Repeat("key/%ü ", 30)
		for _, key := range []string{"a/b c%2F?ü", long} {
			require.NoError(t, queue.Put(t.Context(), "odd", message.NewMessage(key, nil)))
		}
		s.exec(`UPDATE millrace_messages SET status = 6 WHERE topic = ?`, []byte("odd"))
		hashed := keycode.String(keycode.Encode(long))
		for _, key := range []string{"a/b c%2F?ü", long, hashed} {
			r := s.run("retry", key, "--consumer", "billing")
			assert.Equal(t, 2, r.code, "%s: %s", key, r.err)
			assert.Contains(t, r.out, "1 message would be handled again")
			assert.Zero(t, s.run("explain", key).code)
		}
		assert.Equal(t, 3, s.run("retry", "another key", "--consumer", "billing").code)
	}))
}

// TestAnUnknownCommandIsAWrongCall: not a call for help, which a script would take for done.
func TestAnUnknownCommandIsAWrongCall(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"outbox", "steps", "replay", "policy"} {
		r := call(t, "", group, "resum", "may")
		assert.Equal(t, 2, r.code, group)
		assert.Contains(t, r.err, "unknown command \"resum\"")
	}
}

// TestAnyRateIsTaken: as fast as it goes, too.
func TestAnyRateIsTaken(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"outbox", "retry", "--all-matching"}, {"retry", "--all-matching", "--consumer", "billing"}, {"import", "mail", "--query", "SELECT 'x'"},
	} {
		s := newShop(t, testdb.On(t, "sqlite"))
		s.serve()
		r := s.run(append(args, "--reason", "x", "--yes", "--rate", "9000000000000000000")...)
		assert.Zero(t, r.code, "%q: %s", args, r.err)
	}
}

// park adds n parked messages from the topic many.
func (s *shop) park(n int) {
	s.Helper()
	queue := rig.Queue(s, s.store, inbox.QueueConfig{Consumer: "billing"})
	for i := range n {
		require.NoError(s, queue.Put(s.Context(), "many", order(1000+i)))
	}
	s.exec(`UPDATE millrace_messages SET status = 6 WHERE topic = ?`, []byte("many"))
	s.exec(`INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 1, 0, received_at FROM millrace_messages WHERE topic = ?`, []byte("many"))
}

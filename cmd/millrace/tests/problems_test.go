package tests_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-go/millrace/internal/problems"
	"github.com/millrace-go/millrace/tests/testdb"
)

// tidy mends everything that is wrong in the shop.
func (s *shop) tidy() {
	s.Helper()
	for _, table := range []string{"messages", "versions", "outcomes", "steps", "outbox", "outbox_relays", "outbox_shards", "outbox_layout"} {
		s.exec(`DELETE FROM millrace_` + table)
	}
}

// relays leaves a message that waits for so long, and a relay whose lease ends then and that has all shards.
func (s *shop) relays(waits, until time.Duration) {
	s.Helper()
	s.tidy()
	s.exec(`INSERT INTO millrace_outbox (key_hash, created_at, topic, uuid, payload) VALUES (1, ?, 'x', 'x', ?)`, ago(waits), []byte("x"))
	s.exec(`INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 1, 1)`)
	s.exec(`INSERT INTO millrace_outbox_shards (generation, shard, owner) VALUES (1, 0, 7)`)
	s.exec(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'shop-1', 1, ?)`, time.Now().Add(until).UnixMicro())
}

// stored leaves one message for billing that waits for so long, of so old a consumer that a janitor should have come by.
func (s *shop) stored(waits time.Duration) {
	s.Helper()
	s.tidy()
	s.stock()
	s.exec(`DELETE FROM millrace_messages WHERE id <> (SELECT MIN(id) FROM millrace_messages)`)
	s.exec(`UPDATE millrace_messages SET received_at = ?`, ago(waits))
}

// TestWhatIsAProblem: each case is as it stands right after the shop was made tidy.
func TestWhatIsAProblem(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	reason := []string{"--reason", "the bank is down", "--by", "ada", "--yes"}
	for _, c := range []struct {
		name string
		make func()
		want string // of the first line: what, how many, since when, and the next command; "": nothing is wrong
	}{
		{"nothing", s.tidy, ""},
		{"a relay runs", func() { s.relays(time.Second, time.Hour) }, ""},
		{"it is slow", func() { s.relays(2*time.Hour, time.Hour) }, "the outbox: messages are not sent in time 1 2h millrace outbox shards"},
		{"what is left waits behind a parked one", func() {
			s.relays(2*time.Hour, -time.Hour)
			s.exec(`UPDATE millrace_outbox SET status = 3, blocked_key = key_hash`)
		}, "the outbox: relays gave up messages 1 2h millrace outbox list"},
		{"the relay died", func() { s.relays(time.Second, -3*time.Hour) }, "no relay runs, so nothing is sent 1 3h millrace outbox shards"},
		{"it died long ago, and nothing is to be sent", func() { s.relays(0, -day); s.exec(`DELETE FROM millrace_outbox`) }, ""},
		{"relays run now and then", func() { s.relays(time.Minute, 0); s.exec(`DELETE FROM millrace_outbox_relays`) }, ""},
		{"they do not", func() { s.relays(2*time.Hour, 0); s.exec(`DELETE FROM millrace_outbox_relays`) },
			"no relay runs, so nothing is sent 1 2h millrace outbox shards"},
		{"a dead relay's outage", func() {
			s.relays(0, -time.Hour)
			s.exec(`UPDATE millrace_outbox_relays SET broker_error = 'refused', broker_out_since = 1`)
			s.exec(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (8, 'new', 1, ?)`, time.Now().Add(time.Hour).UnixMicro())
			s.exec(`UPDATE millrace_outbox_shards SET owner = 8`)
		}, ""},
		{"stored messages that are handled", func() { s.stored(time.Minute) }, ""},
		{"nobody delivers them", func() { s.stored(2 * time.Hour) }, "billing: no queue delivers what is stored 1 2h millrace list --consumer billing"},
		{"a message without a key and without an error", func() {
			s.stored(2 * time.Hour)
			s.exec(`UPDATE millrace_messages SET status = 5, reason = 'no key'`)
		}, "billing: no key 1 2h millrace list --status failed_terminal --consumer billing"},
		{"a parked one without an error", func() { s.exec(`UPDATE millrace_messages SET status = 6`) },
			"billing: no key 1 2h millrace list --status parked --consumer billing"},
		{"stored messages again", func() { s.stored(2 * time.Hour) }, "billing: no queue delivers"},
		{"too slowly", func() { s.serve() }, "billing: stored messages are not handled in time 1 2h millrace list --consumer billing"},
		{"a pause", func() { require.Zero(t, s.run(append([]string{"pause", "billing"}, reason...)...).code) },
			"billing: paused by ada: the bank is down 1 "},
		{"a paused consumer that was removed", func() {
			s.tidy()
			s.exec(`UPDATE millrace_consumers SET served_until = 0`)
		}, ""},
		{"no janitor", func() { s.exec(`UPDATE millrace_consumers SET created_at = ?, paused = 0`, ago(3*day)) },
			"billing: no janitor has ever run, so expired claims stay - 3d millrace purge"},
		{"a janitor that stopped", func() { s.exec(`UPDATE millrace_consumers SET purged_at = ?`, ago(2*day)) },
			"billing: no janitor runs, so expired claims stay - 2d millrace purge"},
		{"no claim is left that it could delete", func() { s.exec(`DELETE FROM millrace_claims`) }, ""},
	} {
		c.make()
		r := s.run("status", "--exit-code")
		if c.want == "" {
			assert.True(t, strings.HasPrefix(r.out, "Nothing is wrong.\n"), "%s: %s%s", c.name, r.out, r.err)
			assert.Zero(t, r.code, c.name)
			continue
		}
		_, list, _ := strings.Cut(r.out, "SINCE\n")
		assert.Truef(t, strings.HasPrefix(strings.Join(strings.Fields(list), " "), c.want), "%s: %s%s", c.name, r.out, r.err)
		assert.Equal(t, 1, r.code, c.name)
		assert.Zero(t, s.run("status").code)
	}
}

// TestStatusFitsTheScreen: with long names and much of everything, and a screen without colors where the user wants none.
func TestStatusFitsTheScreen(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_consumers SET name = ?, epoch = 12, created_at = ? WHERE name = ?`,
		[]byte("shop.billing.OrderPlacedHandlerOfTheSecondGeneration"), ago(50*day), []byte("mail"))
	s.exec(`UPDATE millrace_messages SET error_group = id, last_error = ?`, []byte(strings.Repeat("x", 100)+" no such account "+strings.Repeat("y", 400)))
	for _, status := range []int{1, 4, 5, 6, 7} {
		s.exec(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001)
			INSERT INTO millrace_messages (consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, error_group)
			SELECT consumer, CAST('s%d-' || i AS BLOB), %d, topic, uuid, metadata, payload, payload_hash, received_at, due_at, i
			FROM millrace_messages, n WHERE id = 1`, status, status))
	}
	s.exec(`UPDATE millrace_consumers SET name = ? WHERE name = ?`, []byte("it's odd"), []byte("billing"))
	r := s.run("status", "--namespace", "")
	require.Zero(t, r.code, r.err)
	var next []string
	for line := range strings.Lines(r.out) {
		if strings.HasPrefix(line, "  millrace") {
			next = append(next, strings.TrimSpace(line)) // may be longer: it is pasted
			continue
		}
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	assert.Contains(t, next, `millrace list --consumer 'it'\''s odd'`)
	assert.Contains(t, next, "millrace list --groups", "five groups, and how many more there are")
	assert.Contains(t, r.out, "more like these")
	assert.Regexp(t, `shop\.b.*…, 12  none `, r.out)
	assert.Contains(t, s.run("status", "-o", "wide").out, "shop.billing.OrderPlacedHandlerOfTheSecondGeneration     12  none")
	assert.NotContains(t, r.out, "\x1b")

	term := s.onTerminal("status")
	term.await("\x1b[31m2 of 4 shards") // a problem is red
}

func TestNoColor(t *testing.T) {
	s := newShop(t, testdb.On(t, "sqlite"))
	s.tidy()
	assert.Contains(t, s.onTerminal("status").rest(), "\x1b[32mNothing is wrong.\x1b[0m")
	t.Setenv("TERM", "dumb")
	assert.NotContains(t, s.onTerminal("status").rest(), "\x1b")
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	assert.NotContains(t, s.onTerminal("status").rest(), "\x1b")
}

// TestOutputs: YAML has what JSON has.
func TestOutputs(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_consumers SET name = ? WHERE name = ?`, []byte("yes"), []byte("billing"))
	s.exec(`UPDATE millrace_consumers SET name = ? WHERE name = ?`, []byte("007"), []byte("mail"))
	s.exec(`UPDATE millrace_messages SET last_error = ? WHERE id = 4`, []byte("\\ \u007f\u0080\u0085\u009f\ufeff\ufffe\uffff\U0001f600"))
	age := regexp.MustCompile(`(_seconds"?: )[\d.]+`)
	for _, args := range [][]string{{"status"}, {"list"}, {"list", "--groups"}, {"outbox", "list"}, {"explain", id(20)}} {
		var j, y any
		require.NoError(t, json.Unmarshal([]byte(age.ReplaceAllString(s.run(append(args, "-o", "json")...).out, "${1}7")), &j))
		r := s.run(append(args, "-o", "yaml")...)
		require.NoError(t, yaml.Unmarshal([]byte(age.ReplaceAllString(r.out, "${1}7")), &y), r.err)
		of := func(v any) string { text, err := json.Marshal(v); require.NoError(t, err); return string(text) }
		assert.JSONEq(t, of(j), of(y), args)
	}
	r := s.run("status", "-o", "xml")
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "there are text, wide, json, yaml and csv")
	assert.Equal(t, 2, s.run("status", "--json", "-o", "yaml").code)
	assert.Equal(t, 2, s.run("status", "--watch", "--exit-code").code)
}

// TestAProblemIsOlderThanItsAlert: who is paged finds the cause in the first lines.
func TestAProblemIsOlderThanItsAlert(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../../metrics/alerts.yml")
	require.NoError(t, err)
	for figure, limit := range map[string]time.Duration{
		"millrace_inbox_oldest_held_age_seconds": problems.GapTooLong, "millrace_inbox_oldest_unsettled_age_seconds": problems.OutcomeTooLong,
		"millrace_inbox_oldest_pending_age_seconds": problems.PendingTooLong, "millrace_outbox_oldest_pending_age_seconds": problems.OutboxTooLong,
	} {
		assert.Contains(t, string(rules), fmt.Sprintf("(%s) > %.0f\n", figure, limit.Seconds()))
	}
}

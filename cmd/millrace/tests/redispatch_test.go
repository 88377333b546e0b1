package tests_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/tests/testdb"
)

// outcome leaves what the handler of mail returned for a message.
func (s *shop) outcome(key string, messages []byte) {
	s.Helper()
	s.exec(`INSERT INTO millrace_claims (consumer, message_id, result, processed_at, payload_hash, token)
		SELECT id, ?, 1, ?, 0, 0 FROM millrace_consumers WHERE name = ?`, keycode.Encode(key), ago(day), []byte("mail"))
	s.exec(`INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages)
		SELECT id, ?, ?, ?, ? FROM millrace_consumers WHERE name = ?`, keycode.Encode(key), ago(day), []byte("receipts"), messages, []byte("mail"))
}

// TestAnOutcomeIsSentOnce: whoever sends it, whatever its key is, and beside one that nobody can read.
func TestAnOutcomeIsSentOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		const odd = "a/b \xff'$(id)\n"
		s.outcome(odd, msgcode.Encode([]*message.Message{order(60), order(61)}))
		s.outcome("torn", []byte("no messages"))
		r := s.run("redispatch", "--consumer", "mail")
		assert.Contains(t, r.out, "3 messages of 2 outcomes would be stored")
		assert.Contains(t, r.out, " escaped:a%2Fb+%FF%27%24%28id%29%0A ")
		assert.Contains(t, r.err, `message "torn"`)
		s.outcome("settled", msgcode.Encode([]*message.Message{order(62)}))
		s.meanwhile(`DELETE FROM millrace_outcomes WHERE message_id = `+s.db.Bytes("'\x02settled'"), "millrace_outcomes",
			"redispatch", "settled", "--reason", "its process died", "--yes")
		assert.Zero(t, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE uuid = ?`, id(62)), "another operator was first")
		for range 2 {
			r := s.run("redispatch", "--reason", "its process died", "--yes")
			assert.Equal(t, 1, r.code, "one cannot be read\n%s%s", r.out, r.err)
			assert.Contains(t, r.err, `message "torn"`)
		}
		for _, n := range []int{40, 60, 61} {
			assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_outbox WHERE topic = ? AND uuid = ?`, "receipts", id(n)))
		}
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_outcomes`), "it stays for somebody who can")
		assert.Equal(t, 1, s.count(`SELECT COUNT(*) FROM millrace_audit`), "for both")
		assert.Equal(t, 2, s.count(`SELECT COUNT(*) FROM millrace_audit_messages`))
		assert.Contains(t, s.run("explain", id(21)).out, fmt.Sprintf("    %s  receipts  PENDING (outbox ", id(40)))
		s.exec(`DELETE FROM millrace_outbox_relays`)
		assert.Contains(t, s.run("redispatch", "--consumer", "mail", "torn").err, `message "torn"`)
	}))
}

// TestMoreOutcomesThanTheLimit: whoever reads it, in text or as a program, knows that there may be more.
func TestMoreOutcomesThanTheLimit(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.outcome("another", msgcode.Encode([]*message.Message{order(60)}))
	few, why := []string{"redispatch", "--limit", "1"}, []string{"--reason", "x", "--yes"}
	assert.Contains(t, s.run(few...).out, "There may be more")
	assert.Contains(t, s.run(append(few, "--json")...).out, `"more": true`)
	assert.NotContains(t, s.run("redispatch").out, "There may be more")
	assert.Contains(t, s.run("redispatch", "--json").out, `"more": false`)
	assert.NotContains(t, s.run("redispatch", "another", "--limit", "1").out, "There may be more", "it names one")
	assert.Contains(t, s.run(append(append(few, "--json"), why...)...).out, `"more": true`)
	assert.Contains(t, s.run(append([]string{"redispatch", "--json"}, why...)...).out, `"more": false`)
}

// TestAnOutcomeBehindManyOthers: what is named is found however many are older, and nothing else is said to be settled.
func TestAnOutcomeBehindManyOthers(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001)
		SELECT c.id, CAST(X'02' || i AS BLOB), ? + i, ?, ? FROM n CROSS JOIN millrace_consumers c WHERE c.name = ?`,
		ago(2*day), []byte("receipts"), msgcode.Encode([]*message.Message{order(60)}), []byte("mail"))
	s.outcome("young", msgcode.Encode([]*message.Message{order(61)}))
	r := s.run("redispatch", "young")
	assert.Equal(t, 2, r.code, r.err)
	assert.Contains(t, r.out, "1 message of 1 outcome would be stored")
	for _, args := range [][]string{{"young", "--age", "48h"}, {"another"}} {
		r = s.run(append([]string{"redispatch"}, args...)...)
		assert.Equal(t, 3, r.code, args)
		assert.Contains(t, r.err, "it is settled, or give a shorter --age", args)
	}
}

package tests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestARowThatCannotBeReadHidesNoOther: somebody changed a row by hand, which SQLite allows.
func TestARowThatCannotBeReadHidesNoOther(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.serve()
	s.exec(`UPDATE millrace_messages SET attempts = 'ten' WHERE id = 5`)
	for _, args := range [][]string{{"list", "--status", "parked"}, {"list", "--status", "parked", "--payload", "--reason", "x"}, {"list", "--status", "parked", "--json"}} {
		r := s.run(args...)
		assert.Zero(t, r.code, r.err)
		assert.Contains(t, r.out, "account 4 has no owner")
		assert.Contains(t, r.out, "row 5 cannot be read, so somebody changed it")
		assert.Contains(t, r.out, "account 6 has no owner")
	}
	r := s.run("retry", "--all-matching", "--consumer", "billing", "--status", "parked", "--reason", "x", "--yes")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.out, "2 messages to be handled now")
	assert.Contains(t, r.err, "row 5 cannot be read, so somebody changed it")
}

// TestCopiesThatTheStoryLacks: of a key with more dropped copies than are read, the note that there are none would be wrong, too.
func TestCopiesThatTheStoryLacks(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	assert.NotContains(t, s.run("explain", id(20)).out, "At least")
	s.exec(`INSERT INTO millrace_dropped (at, consumer, message_id, topic, reason)
		SELECT at, consumer, message_id, topic, reason FROM millrace_dropped CROSS JOIN ` + s.db.Numbers(1000))
	r := s.run("explain", id(20))
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "At least 1000 copies were dropped, of all consumers together: the story has the newest.")
	assert.NotContains(t, r.out, "No copy that was dropped is noted")
}

func TestAnOutcomeThatCannotBeReadHidesNothingElse(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_outcomes SET messages = ? WHERE message_id = ?`, []byte{9}, keycode.Encode(id(21)))
	r := s.run("explain", id(21))
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "this copy won")
	assert.Contains(t, r.out, "What it returned cannot be read")
}

package tests_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAHeldMessageHasNoNextAttempt: at the end of its time it is parked.
func TestAHeldMessageHasNoNextAttempt(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`UPDATE millrace_messages SET aggregate = (SELECT aggregate FROM millrace_messages WHERE id = 8), version = 4 WHERE id = 4`)
	discarded := s.run("discard", "4", "--reason", "a test message", "--yes")
	assert.Zero(t, discarded.code)
	assert.Contains(t, discarded.err, "messages stay held behind one that was discarded: call Admin.SetVersion with 4, or millrace set-version")
	assert.Contains(t, discarded.err, "(aggregate escaped:account+17, ")
	s.exec(`UPDATE millrace_messages SET due_at = ? WHERE id = 8`, time.Now().Add(time.Hour).UnixMicro())
	var listed struct{ Messages []map[string]any }
	r := s.run("list", "--status", "held", "--json")
	require.NoError(t, json.Unmarshal([]byte(r.out), &listed), r.err)
	require.Len(t, listed.Messages, 1)
	assert.Nil(t, listed.Messages[0]["due_at"])
	assert.NotNil(t, listed.Messages[0]["parks_at"])
	r = s.run("explain", id(8))
	assert.Regexp(t, `HELD: waits for version 4; parked at \S+ unless its predecessor comes`, r.out)
	assert.NotContains(t, r.out, "; due at")
}

package tests_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAPrintedKeyCanBePasted into a shell, whatever it is made of and however long it is.
func TestAPrintedKeyCanBePasted(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	queue := rig.Queue(s, s.store, inbox.QueueConfig{Consumer: "keyed", Key: inbox.ByMetadata("key")})
	keys := []string{
		"order 17", `a'b"c$(id)`, "line\nbreak", "nul\x00byte", "bytes\xff\xfe", "-dash", "escaped:x", "ürün/1", "100%", strings.Repeat("k", 120), strings.Repeat("l", 300),
	}
	for i, key := range keys {
		msg := message.NewMessage(id(100+i), []byte("{}"))
		msg.Metadata.Set("key", key)
		require.NoError(t, queue.Put(t.Context(), "odd", msg))
	}
	var rows struct{ Messages []struct{ Key string } }
	r := s.run("list", "--topic", "odd", "--json")
	require.NoError(t, json.Unmarshal([]byte(r.out), &rows), r.err)
	require.Len(t, rows.Messages, len(keys))
	lines := strings.Split(strings.TrimSpace(s.run("list", "--topic", "odd").out), "\n")[1:]
	require.Len(t, lines, len(keys))
	for i, line := range lines {
		printed := strings.Fields(line)[4]
		cmd := exec.CommandContext(t.Context(), "sh", "-c", binary+" explain --json "+printed)
		cmd.Env = append(cmd.Environ(), "MILLRACE_DSN="+s.db.DSN)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%q: %s", keys[i], out)
		assert.Contains(t, string(out), `"uuid": "`+id(100+i)+`"`, "%q as %s", keys[i], printed)
		r := s.run("retry", "--consumer", "keyed", "--", rows.Messages[i].Key)
		assert.NotContains(t, r.err, "has no open message", "%q", keys[i])
	}
}

// TestAKeyOfTwoEpochs: a consumer with a new epoch handles again what is still open in the one before.
func TestAKeyOfTwoEpochs(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		queue := rig.Queue(s, s.store, inbox.QueueConfig{Consumer: "billing", Epoch: 1})
		require.NoError(t, queue.Put(t.Context(), "orders", order(4)))
		s.exec(`UPDATE millrace_messages SET status = ? WHERE uuid = ?`, admin.Parked, []byte(id(4)))
		for _, action := range []string{"retry", "discard"} {
			r := s.run(action, id(4), "--consumer", "billing", "--reason", "x", "--yes")
			assert.Equal(t, 2, r.code, r.out)
			assert.Contains(t, r.err, `is open in epochs 0 and 1: give --epoch`)
			for _, epoch := range []string{"0", "1"} {
				r = s.run(action, id(4), "--consumer", "billing", "--epoch", epoch)
				assert.Regexp(t, `billing +`+epoch+` +1 `, r.out, r.err)
			}
		}
		assert.Equal(t, 2, s.count(`SELECT COUNT(*) FROM millrace_messages WHERE uuid = ?`, []byte(id(4))))
	}))
}

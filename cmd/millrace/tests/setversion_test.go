package tests_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAnyAggregateIsMovedOn: as waiting prints it, whatever its id and its versions are, and once if several do so.
func TestAnyAggregateIsMovedOn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		const applied = 1<<53 + 1 // a program that takes it for a float reads another number
		queue := rig.Queue(t, s.store, inbox.QueueConfig{Consumer: "billing"})
		s.exec(`DELETE FROM millrace_messages`)
		ids := []string{"\xff\x00'\n$(id) --yes", strings.Repeat("account/", 30), "-18", id(7), "escaped:x", "sha256:x"}
		for i, aggregate := range ids {
			s.version(aggregate, applied)
			uuid := "held " + strconv.Itoa(i)
			require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage(uuid, nil)))
			s.exec(`UPDATE millrace_messages SET status = 7, aggregate = ?, version = ? WHERE message_id = ?`,
				keycode.Encode(aggregate), applied+3, keycode.Encode(uuid))
		}
		var waiting struct {
			Aggregates []struct {
				Aggregate string
				WaitsFor  string `json:"waits_for_version"`
			}
		}
		r := s.run("waiting", "--json")
		require.NoError(t, json.Unmarshal([]byte(r.out), &waiting), r.out+r.err)
		require.Len(t, waiting.Aggregates, len(ids))
		table := s.run("waiting").out
		for _, w := range waiting.Aggregates {
			assert.Equal(t, strconv.Itoa(applied+1), w.WaitsFor)
			shown := w.Aggregate
			if !strings.Contains(table, shown+" ") || strings.HasPrefix(shown, "-") { // a shell or a flag would take it for another
				shown = shownIn(t, table, w.Aggregate)
			}
			gap := fmt.Sprintf("%d-%d", applied+1, applied+2)
			call := []string{"skip-gap", "billing", shown, "--reason", "they never come", "--yes"}
			r := s.run(call...)
			assert.Contains(t, r.err, "add --missing "+gap+"\n", r.out)
			ended := make(chan result, 2)
			for range cap(ended) {
				go func() { ended <- s.run(append(call, "--missing", gap)...) }()
			}
			first, second := <-ended, <-ended
			assert.Zero(t, min(first.code, second.code), first.err+second.err)
			assert.Contains(t, []int{0, 5}, max(first.code, second.code), first.err+second.err)
		}
		assert.Equal(t, len(ids), s.count(`SELECT COUNT(*) FROM millrace_messages WHERE status = 1`), "they are released")
		assert.Equal(t, len(ids), s.count(`SELECT COUNT(*) FROM millrace_versions WHERE version = ?`, applied+2), "and no aggregate was made up")
	}))
}

// shownIn returns how the table of waiting writes an aggregate.
func shownIn(t *testing.T, table, aggregate string) string {
	t.Helper()
	for _, line := range strings.Split(table, "\n") {
		shown, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(shown, "escaped:") && strings.HasSuffix(shown, strings.TrimPrefix(aggregate, "-")) {
			return shown
		}
	}
	require.Fail(t, "it is not in the table", "%q\n%s", aggregate, table)
	return ""
}

// TestAnAggregateThatIsAdvancing: while a message is handled, who would set its version waits for it.
func TestAnAggregateThatIsAdvancing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		r := s.meanwhile(`UPDATE millrace_versions SET version = 5`, "millrace_versions",
			"skip-gap", "billing", "account 17", "--missing", "4", "--reason", "x", "--yes")
		assert.Equal(t, 5, r.code, r.out+r.err)
		assert.Zero(t, s.count(`SELECT COUNT(*) FROM millrace_audit`))
	}))
}

// meanwhile runs a command that comes upon a table while another transaction has changed it, and the commit of that
// transaction. On SQLite the command may come later.
func (s *shop) meanwhile(statement, table string, args ...string) result {
	s.Helper()
	tx, err := s.db.BeginTxx(s.Context(), nil)
	require.NoError(s, err)
	defer tx.Rollback() //nolint:errcheck // it is over
	_, err = tx.ExecContext(s.Context(), statement)
	require.NoError(s, err)
	ended := make(chan result, 1)
	go func() { ended <- s.run(args...) }()
	s.db.UntilWaiting(s, 1, table)
	require.NoError(s, tx.Commit())
	return rig.Within(s, ended, "the command ends")
}

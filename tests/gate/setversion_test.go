package gate_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var ada = inbox.Operator{Name: "ada", Reason: "it never came"}

// The row of an aggregate whose first message is with a handler cannot be seen, nor locked by what
// does not make it.
func TestSetVersionWhileTheFirstMessageIsHandled(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		a := inbox.Aggregate{Consumer: consumer, ID: "a"}
		must(t, b.gated(b.store, millrace.VersionGate{}, handler), change("b", 1)) // the consumer is known
		operator := b.process()
		var set <-chan error
		h := b.gated(b.store, millrace.VersionGate{First: inbox.FirstSeen}, func(msg *message.Message) ([]*message.Message, error) {
			ended := make(chan error, 1)
			go func() { ended <- operator.SetVersion(t.Context(), a, 3, ada) }()
			set = ended
			waits(b)
			return handler(msg)
		})
		must(t, h, change("a", 7))
		assert.ErrorContains(t, rig.Within(t, set, "SetVersion returns"), "it is at version 7 already")
		version, err := b.store.Version(t.Context(), a)
		require.NoError(t, err)
		assert.Equal(t, int64(7), version)
		require.NoError(t, operator.SetVersion(t.Context(), a, 7, ada), "again is no error")
		require.NoError(t, operator.SetVersion(t.Context(), a, 9, ada))
		must(t, b.gated(b.process(), millrace.VersionGate{}, handler), change("a", 10))
		assert.Equal(t, []int64{7, 10}, b.applied("a"))
	}))
}

// waits returns when a statement about versions waits for a lock. On SQLite the others wait in memory.
func waits(b *bed) {
	query := map[string]string{
		"postgres": `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
		"mysql": `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE '%millrace_versions%'`,
	}[b.db.Dialect]
	if query != "" {
		rig.Eventually(b, "somebody waits", func() bool { return b.count(query) > 0 })
	}
}

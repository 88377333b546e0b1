package gate_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A copy goes past the table while the message lies there, not delivered yet: the stored one is held, or
// parked, in its turn.
func TestACopyOfWhatIsStored(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		h := millrace.Inbox{Store: b.store, Consumer: consumer, Options: inbox.Options{OnReplay: inbox.ReplayRefuse}}.Middleware(
			millrace.VersionGate{}.Middleware(handler))
		queue := rig.Queue(t, b.store, inbox.QueueConfig{Consumer: consumer})
		replayed := change("b", 1)
		replayed.Metadata.Set(inbox.ReplayField, "again")
		became := map[string]admin.Status{}
		msgs := []*message.Message{change("a", 2), change("a", 0), replayed}
		for i, status := range []admin.Status{admin.Held, admin.Parked, admin.Parked} {
			became[msgs[i].UUID] = status
			require.NoError(t, queue.Put(t.Context(), "changes", again(msgs[i])))
			must(t, h, again(msgs[i]))
			other := message.NewMessage(msgs[i].UUID, []byte("another payload"))
			other.Metadata = msgs[i].Copy().Metadata
			rig.MustFail(t, h, other, "another payload is stored under the key")
		}
		assert.Equal(t, len(msgs), b.events.Count("duplicate"))
		assert.Equal(t, len(msgs), b.open(admin.Received))
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_claims`))

		leased, err := queue.HandOut(t.Context(), rig.Take(t, queue, 10)...)
		require.NoError(t, err)
		require.Len(t, leased, len(msgs))
		for _, l := range leased {
			msg, err := l.Message(t.Context())
			require.NoError(t, err)
			must(t, h, msg)
		}
		for _, m := range rig.Find(t, b.store, admin.Filter{}) {
			assert.Equal(t, became[m.UUID], m.Status)
		}
		assert.Empty(t, b.applied("a"))
	}))
}

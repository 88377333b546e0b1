package policy_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

func each(t *testing.T, body func(b *bed)) {
	t.Helper()
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) { body(newBed(t, db)) })
}

// everywhere is what is done where all consumers do the same.
func everywhere(what string) done {
	return done{
		"search-indexer": what, "notification-sender": what, "mails": what, "analytics": what, "audit-copy": what,
		"workflow": what, "commands": commands(what), "cache-warmer": what,
	}
}

// with returns d with other values for some.
func (d done) with(other done) done {
	for name, what := range other {
		d[name] = what
	}
	return d
}

// commands are what workflow sends.
func commands(what string) (all string) {
	for i, c := range what {
		if i == 0 {
			all = "do-"
		}
		all += string(c)
		if c == ' ' {
			all += "do-"
		}
	}
	return all
}

func TestDuplicates(t *testing.T) {
	each(t, func(b *bed) {
		x, y, z := change("x", "chair", 1, "made"), change("y", "chair", 2, "sold"), change("z", "table", 1, "made")
		b.publish(x, x, y, x, z, y, z)
		require.Equal(b, everywhere("x y z").with(done{"cache-warmer": "x x y x z y z"}), b.done())
		require.Zero(b, b.events.Count("collision"))
	})
}

// An event that is told again under another UUID is one event for analytics alone.
func TestDuplicatesOfABusinessKey(t *testing.T) {
	each(t, func(b *bed) {
		b.publish(change("x", "chair", 1, "made"), change("y", "chair", 2, "made"))
		require.Equal(b, everywhere("x y").with(done{"analytics": "x"}), b.done())
	})
}

// A message before its predecessor waits where the order counts, and makes the predecessor
// old news where only the newest state does.
func TestGaps(t *testing.T) {
	each(t, func(b *bed) {
		b.publish(change("x", "chair", 1, "made"), change("z", "chair", 3, "sold"))
		require.Equal(b, everywhere("x z").with(done{"audit-copy": "x"}), b.done())
		require.Equal(b, 1, b.open("audit-copy", admin.Held))

		b.publish(change("y", "chair", 2, "priced"))
		b.becomes(everywhere("x z y").with(done{"audit-copy": "x y z", "search-indexer": "x z"}))
		require.Equal(b, 1, b.events.Count("stale"))
		require.Zero(b, b.open("audit-copy", admin.Held))
	})
}

// A message that lacks what a rule needs is kept for an operator where the rule is.
func TestMessagesThatLackWhatARuleNeeds(t *testing.T) {
	each(t, func(b *bed) {
		msg := message.NewMessage("x", []byte(`{}`))
		for _, handler := range []string{"search-indexer", "analytics", "audit-copy", "notification-sender", "workflow", "cache-warmer"} {
			require.True(b, b.deliver(handler, msg), handler)
		}
		require.Equal(b, everywhere("x").with(done{"search-indexer": "", "analytics": "", "audit-copy": ""}), b.done())
		for _, handler := range []string{"search-indexer", "analytics", "audit-copy"} {
			require.Equal(b, 1, b.open(handler, admin.FailedTerminal), handler)
		}
	})
}

// What is replayed while it is remembered is handled by nobody who remembers.
func TestReplaysOfWhatIsRemembered(t *testing.T) {
	each(t, func(b *bed) {
		msg := change("x", "chair", 1, "made")
		b.publish(msg)
		b.publish(replayed(msg))
		require.Equal(b, everywhere("x").with(done{"cache-warmer": "x x"}), b.done())
		require.Zero(b, b.open("", admin.Parked))
	})
}

// What is replayed and was never handled is mailed if an operator says so, and commands nobody.
func TestReplaysOfWhatIsNew(t *testing.T) {
	each(t, func(b *bed) {
		b.publish(replayed(change("x", "chair", 1, "made")))
		refused := everywhere("x").with(done{"notification-sender": "", "mails": "", "commands": ""})
		require.Equal(b, refused, b.done())
		require.Equal(b, 1, b.open("notification-sender", admin.Parked))

		require.Eventually(b, func() bool { // a queue says a moment after its start that it is there
			retried, err := admin.New(b.store).RetryAll(b.Context(), admin.Filter{Consumer: "notification-sender"},
				admin.Operator{Name: "ada", Reason: "it was never sent"}, nil, admin.Pace{})
			return err == nil && retried == 1
		}, rig.Patience, tick)
		b.becomes(refused.with(done{"notification-sender": "x", "mails": "x"}))
	})
}

func replayed(msg *message.Message) *message.Message {
	again := msg.Copy()
	again.Metadata.Set(inbox.ReplayField, "of May")
	return again
}

// What fails is tried again from the table where there is a queue, with the key that the
// provider knows, and is the broker's where there is none.
func TestFailures(t *testing.T) {
	each(t, func(b *bed) {
		b.outside.fail["notification-sender"], b.outside.fail["analytics"], b.outside.fail["audit-copy"] = 3, 1, 2
		msg := change("x", "chair", 1, "made")
		require.False(b, b.deliver("analytics", msg))
		require.True(b, b.deliver("notification-sender", msg))
		require.True(b, b.deliver("audit-copy", msg))
		b.becomes(everywhere("").with(done{"notification-sender": "x", "mails": "x", "audit-copy": "x"}))
		require.True(b, b.deliver("analytics", msg))
		b.becomes(everywhere("").with(done{"notification-sender": "x", "mails": "x", "audit-copy": "x", "analytics": "x"}))
	})
}

// A message that fails too often is parked after the policy's number of attempts.
func TestAttempts(t *testing.T) {
	each(t, func(b *bed) {
		b.outside.fail["notification-sender"] = 1000
		require.True(b, b.deliver("notification-sender", change("x", "chair", 1, "made")))
		require.Eventually(b, func() bool { return b.open("notification-sender", admin.Parked) == 1 }, rig.Patience, tick)
		found := rig.Find(b, b.store, admin.Filter{Status: admin.Parked})
		require.Equal(b, 8, found[0].Attempts)
	})
}

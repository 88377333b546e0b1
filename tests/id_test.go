package tests_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// goldenIDs are what providers have been given already: they never change.
var goldenIDs = []struct {
	key   string
	parts []string
	id    string
}{
	{"0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de", nil, "30f6d8a0-0969-814d-a9d5-a325f59a45a1"},
	{"0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de", []string{"mail"}, "5af5b509-197a-8f4c-9ac7-1e13ca4e783c"},
	{"0190b7a4-4d3c-7bd2-8e0c-2b54f6a3c1de", []string{"ma", "il"}, "7210c6db-5652-8ce7-8bba-f1b439f29a3e"},
	{"order-17", []string{"mail"}, "00c5565f-9822-871a-b8ce-c88d3ed384a6"},
	{strings.Repeat("k", 200), []string{"mail"}, "e326e88c-cb17-8aa0-b2f4-707b1ba4e0a5"},
}

// TestID has each kind of handler make ids on every database.
func TestID(t *testing.T) {
	t.Parallel()
	testdb.Conformance(t, []testdb.Body{
		{Name: "ids never change", Why: "a provider knows them", Run: testdb.With(newBed, idsAreGolden)},
		{Name: "an id outside of a handler", Why: "a clear error, not the id of another message", Run: testdb.With(newBed, idOutside)},
	})
}

func idsAreGolden(t *testing.T, b *bed) {
	store := b.newStore(b.db.DB, inbox.Config{Namespace: "shop"})
	for i, g := range goldenIDs {
		for _, epoch := range []int{2 * i, 2*i + 1} { // anew for each: keys repeat
			var made []string
			ask := func(msg *message.Message) error {
				id, err := inbox.ID(msg.Context(), g.parts...)
				made = append(made, id)
				return err
			}
			h := func(msg *message.Message) ([]*message.Message, error) { return nil, ask(msg) }
			inboxed := b.inbox(h, on(store), before(ask), func(i *millrace.Inbox) { i.Epoch, i.Key = epoch, inbox.ByMetadata("key") })
			leased := b.leased(h, onStore(store), func(d *millrace.Deduplicate) { d.Epoch, d.Key = epoch, inbox.ByMetadata("key") })
			msg := newMessage("x")
			msg.Metadata.Set("key", g.key)
			must(t, inboxed, again(msg))
			must(t, leased, again(msg))
			assert.Equal(t, []string{g.id, g.id, g.id}, made, "%.20s %q", g.key, g.parts)
		}
	}
	var id string
	must(t, b.inbox(func(msg *message.Message) (_ []*message.Message, err error) {
		id, err = inbox.ID(msg.Context(), "mail")
		return nil, err
	}, func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("key") }), withKey("order-17"))
	assert.Equal(t, "5a396ce6-0c26-8b91-8b2f-cf04a52bfcf7", id, "without a namespace")
}

func withKey(key string) *message.Message {
	msg := newMessage("x")
	msg.Metadata.Set("key", key)
	return msg
}

func idOutside(t *testing.T, b *bed) {
	refused := func(ctx context.Context, when string) {
		t.Helper()
		_, err := inbox.ID(ctx, "mail")
		require.ErrorIs(t, err, inbox.ErrNoMessage, when)
	}
	refused(t.Context(), "no message")
	var kept context.Context
	keep := func(msg *message.Message) ([]*message.Message, error) {
		kept = msg.Context()
		return nil, nil
	}
	must(t, b.inbox(keep), newMessage("x"))
	refused(kept, "the handler of Inbox has returned")
	must(t, b.leased(keep), newMessage("x"))
	refused(kept, "the handler of Deduplicate has returned")
	_, _ = b.leased(func(msg *message.Message) ([]*message.Message, error) {
		kept = msg.Context()
		return nil, errBoom
	})(newMessage("x"))
	refused(kept, "the handler of Deduplicate has failed")
	must(t, b.inbox(effect, before(func(msg *message.Message) error {
		kept = msg.Context()
		return nil
	})), newMessage("x"))
	refused(kept, "Before has returned")
	must(t, b.inbox(func(msg *message.Message) ([]*message.Message, error) {
		refused(msg.Context(), "skipped")
		return nil, nil
	}, func(i *millrace.Inbox) { i.Skip = func(*message.Message) bool { return true } }), newMessage("x"))

	// A message that a handler publishes may bring that handler's context along.
	must(t, b.inbox(func(outer *message.Message) ([]*message.Message, error) {
		inner := newMessage("y")
		inner.SetContext(outer.Context())
		var ids []string
		_, err := b.leased(func(msg *message.Message) ([]*message.Message, error) {
			id, err := inbox.ID(msg.Context())
			ids = append(ids, id)
			return nil, err
		})(inner)
		require.ErrorContains(t, err, "inside middleware.Inbox")
		assert.Empty(t, ids)
		return nil, nil
	}), newMessage("x"))
	var ids []string
	note := func(msg *message.Message) error {
		id, err := inbox.ID(msg.Context())
		ids = append(ids, id)
		return err
	}
	ask := func(msg *message.Message) ([]*message.Message, error) { return nil, note(msg) } //nolint:unparam // a handler
	key := func(d *millrace.Deduplicate) { d.Key = inbox.ByMetadata("key") }
	must(t, b.leased(func(outer *message.Message) ([]*message.Message, error) {
		require.NoError(t, note(outer))
		inner := withKey("inner")
		inner.SetContext(outer.Context())
		must(t, b.inbox(ask, func(i *millrace.Inbox) { i.Epoch, i.Key = 1, inbox.ByMetadata("key") }), inner)
		return nil, note(outer)
	}, key, func(d *millrace.Deduplicate) { d.Epoch = 1 }), withKey("outer"))
	must(t, b.inbox(ask, func(i *millrace.Inbox) { i.Epoch, i.Key = 2, inbox.ByMetadata("key") }), withKey("inner"))
	require.Len(t, ids, 4)
	assert.Equal(t, ids[0], ids[2])
	assert.Equal(t, ids[1], ids[3], "the innermost message counts")
	assert.NotEqual(t, ids[0], ids[1])
}

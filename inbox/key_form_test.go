package inbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
)

// delivered returns msg as a router delivers it: from a topic.
func delivered(t *testing.T, topic string, msg *message.Message) *message.Message {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	feed, got := rig.NewFeed(), make(chan *message.Message, 1)
	router.AddConsumerHandler("h", topic, feed, func(m *message.Message) error {
		got <- m
		return nil
	})
	go func() { _ = router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	t.Cleanup(func() { _ = router.Close() })
	feed.Send(t, msg)
	return <-got
}

// TestKeysAreMadeOfTheirParts: what is imported has the key that its message brings.
func TestKeysAreMadeOfTheirParts(t *testing.T) {
	t.Parallel()
	const sum = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // of "x"
	msg := made("u-1", message.Metadata{"ce_source": "shop", "ce_id": "7", "order": "o-1", "name": "Paid"}, "x")
	paid := made("u-1", message.Metadata{"name": "Paid"}, `{"order":{"id":7},"final":true,"to":"ann"}`)
	number := inbox.ByFunc("number", func(m *message.Message) (string, error) { return "n" + m.UUID, nil })
	for _, c := range []struct {
		key   inbox.Key
		msg   *message.Message
		names string
		parts []string
	}{
		{inbox.Key{}, msg, "uuid", []string{"u-1"}},
		{inbox.ByMetadata("order"), msg, "order", []string{"o-1"}},
		{inbox.ByCloudEvent(), msg, "ce_source ce_id", []string{"shop", "7"}},
		{inbox.ByPayload(), msg, "SHA-256 of the payload", []string{sum}},
		{at("orders", "3", 17), msg, "topic partition offset", []string{"orders", "3", "17"}},
		{number, msg, "number", []string{"nu-1"}},
		{inbox.ByJSON("order.id"), paid, "order.id", []string{"7"}},
		{inbox.ByJSON("to", "final"), paid, "to final", []string{`"ann"`, "true"}},
		{inbox.Joined(inbox.ByCloudEvent(), inbox.ByMetadata("order")), msg, "ce_source ce_id order", []string{"shop", "7", "o-1"}},
		{inbox.ByUUID().WithinTopic(), msg, "topic uuid", []string{"orders", "u-1"}},
		{inbox.ByCloudEvent().WithinType().WithinTopic(), msg, "topic type ce_source ce_id", []string{"orders", "Paid", "shop", "7"}},
	} {
		t.Run(c.key.String(), func(t *testing.T) {
			t.Parallel()
			want := keyOf(t, c.key, delivered(t, "orders", c.msg.Copy()))
			got, err := c.key.Made(c.parts...)
			require.NoError(t, err)
			assert.Equal(t, want, got)
			assert.Equal(t, c.names, strings.Join(c.key.Parts(), " "))
			parsed, err := inbox.Internals{}.ParseKey(c.key.String())
			require.NoError(t, err)
			assert.Equal(t, c.key.String(), parsed.String())
			got, err = parsed.Made(c.parts...)
			require.NoError(t, err)
			assert.Equal(t, want, got, "of the key that was parsed")
		})
	}
}

func TestPartsThatAreNoKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key   inbox.Key
		parts []string
		want  string
	}{
		{inbox.ByUUID(), nil, "it has 0 parts, and uuid has 1"},
		{inbox.ByUUID(), []string{""}, "uuid is empty"},
		{inbox.ByUUID(), []string{" a"}, `uuid " a" begins or ends with white space`},
		{inbox.ByUUID(), []string{strings.Repeat("\xfe", 16)}, "uuid is 16 bytes, but not text"},
		{inbox.ByCloudEvent(), []string{"a"}, "it has 1 parts, and cloudevent has 2: ce_source, ce_id"},
		{inbox.ByPayload(), []string{"ABCD"}, `"ABCD" is not a SHA-256`},
		{inbox.ByJSON("id"), []string{"abc"}, `id "abc" is not a JSON string, number or boolean`},
		{inbox.ByJSON("id"), []string{"1 2"}, `id "1 2" is not a JSON string`},
		{inbox.ByJSON("id"), []string{`"\ud83d"`}, `has a character that is no Unicode`},
		{inbox.ByJSON("id"), []string{"null"}, `id "null" is not a JSON string`},
		{inbox.ByJSON(), []string{"1"}, "cannot be built from parts"},
		{at("a", "b", 1), []string{"a", "b", "+7"}, `offset "+7" is not an offset`},
		{inbox.FirstOf(inbox.ByUUID()), []string{"a"}, "cannot be built from parts"},
		{inbox.Joined(inbox.ByUUID(), inbox.FirstOf(inbox.ByUUID())), []string{"a", "b"}, "cannot be built from parts"},
		{inbox.Joined(), nil, "joined() is empty"},
	} {
		_, err := c.key.Made(c.parts...)
		require.ErrorContains(t, err, c.want, "%s of %q", c.key, c.parts)
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	for _, key := range []inbox.Key{
		inbox.FirstOf(inbox.ByUUID(), inbox.ByJSON("a", `b"c`).WithinType(), inbox.ByPayload()).WithinTopic(),
		inbox.Joined(inbox.ByJSON("a", "b"), inbox.ByUUID()), inbox.FirstOf(), inbox.ByFunc("a/topic", nil), inbox.ByMetadata(""),
	} {
		parsed, err := inbox.Internals{}.ParseKey(key.String())
		require.NoError(t, err)
		assert.Equal(t, key.String(), parsed.String())
	}
	for _, wrong := range []string{
		"", "uid", "uuid ", "uuid/", "uuid/topics", "metadata:order", `metadata:"a`, "json:", `json:"a",`, "joined(uuid", "joined(uuid uuid)",
		"joined(,uuid)", "first(uuid))", `func:"\x"`,
	} {
		_, err := inbox.Internals{}.ParseKey(wrong)
		assert.ErrorContains(t, err, "is not a key", wrong)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(`joined(metadata:"a",first(json:"b","c"/type,cloudevent))/topic`)
	f.Fuzz(func(t *testing.T, description string) {
		key, err := inbox.Internals{}.ParseKey(description)
		if err != nil {
			return
		}
		again, err := inbox.Internals{}.ParseKey(key.String())
		if err != nil || again.String() != key.String() {
			t.Fatalf("%q is parsed as %s, and that as %s: %v", description, key, again, err)
		}
	})
}

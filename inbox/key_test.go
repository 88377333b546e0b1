package inbox_test

import (
	"errors"
	"math"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
)

func made(uuid string, md message.Metadata, payload string) *message.Message {
	m := message.NewMessage(uuid, []byte(payload))
	m.Metadata = md
	return m
}

func keyOf(t *testing.T, k inbox.Key, msg *message.Message) string {
	t.Helper()
	value, err := k.Of(msg)
	require.NoError(t, err)
	require.NotEmpty(t, value)
	return value
}

func at(topic, partition string, offset int64) inbox.Key {
	return inbox.ByPosition(func(*message.Message) (inbox.Position, error) {
		return inbox.Position{Topic: topic, Partition: partition, Offset: offset}, nil
	})
}

// Each pair says whether two deliveries are the same message under a key.
func TestKeysTellMessagesApart(t *testing.T) {
	type md = message.Metadata
	value := func(field, v string) *message.Message { return made("u-"+v, md{field: v}, "") }
	for _, c := range []struct {
		name     string
		key      inbox.Key
		one, two *message.Message
		same     bool
	}{
		{"zero key is the UUID", inbox.Key{}, made("a", nil, "1"), made("a", nil, "2"), true},
		{"zero key is the UUID", inbox.Key{}, made("a", nil, "1"), made("b", nil, "1"), false},
		{"UUID", inbox.ByUUID(), made("a", nil, "1"), made("a", nil, "2"), true},
		{"UUID", inbox.ByUUID(), made("a", nil, "1"), made("A", nil, "1"), false},
		{"metadata collapses", inbox.ByMetadata("order"), made("a", md{"order": "7"}, "1"), made("b", md{"order": "7"}, "2"), true},
		{"metadata", inbox.ByMetadata("order"), value("order", "7"), value("order", "8"), false},
		{"CloudEvent", inbox.ByCloudEvent(), made("a", md{"ce_source": "s", "ce_id": "1"}, ""),
			made("b", md{"ce_source": "s", "ce_id": "1"}, ""), true},
		{"CloudEvent's boundary", inbox.ByCloudEvent(), made("a", md{"ce_source": "s1", "ce_id": "2"}, ""),
			made("a", md{"ce_source": "s", "ce_id": "12"}, ""), false},
		{"JSON collapses", inbox.ByJSON("order.id"), made("a", nil, `{"order":{"id":7},"n":1}`),
			made("b", nil, `{"n":2,"order":{"id":7}}`), true},
		{"JSON number and text", inbox.ByJSON("id"), made("a", nil, `{"id":1}`), made("a", nil, `{"id":"1"}`), false},
		{"JSON boolean and text", inbox.ByJSON("id"), made("a", nil, `{"id":true}`), made("a", nil, `{"id":"true"}`), false},
		{"JSON's big numbers", inbox.ByJSON("id"), made("a", nil, `{"id":9007199254740993}`),
			made("a", nil, `{"id":9007199254740992}`), false},
		{"JSON's boundary", inbox.ByJSON("a", "b"), made("a", nil, `{"a":"x","b":"yz"}`), made("a", nil, `{"a":"xy","b":"z"}`), false},
		{"JSON's replacement character", inbox.ByJSON("id"), made("a", nil, `{"id":"\ufffd","n":"\\\ud83d\ude00"}`),
			made("a", nil, `{"id":"�"}`+"\n"), true},
		{"JSON that is garbled elsewhere", inbox.ByJSON("id"), made("a", nil, `{"id":"\ud83d\uDE00","n":"\ud83d"}`),
			made("a", nil, "{\"id\":\"😀\",\"n\":\"\xfc\"}"), true},
		{"payload collapses", inbox.ByPayload(), made("a", md{"k": "1"}, "x"), made("b", md{"k": "2"}, "x"), true},
		{"payload", inbox.ByPayload(), made("a", nil, "x"), made("a", nil, "y"), false},
		{"position", at("t", "0", 7), made("a", nil, "1"), made("b", nil, "2"), true},
		{"function collapses", inbox.ByFunc("one", func(*message.Message) (string, error) { return "k", nil }),
			made("a", nil, "1"), made("b", nil, "2"), true},
		{"joined", inbox.Joined(inbox.ByMetadata("a"), inbox.ByMetadata("b")), made("x", md{"a": "1", "b": "2"}, ""),
			made("y", md{"a": "1", "b": "2"}, ""), true},
		{"joined's boundary", inbox.Joined(inbox.ByMetadata("a"), inbox.ByMetadata("b")), made("x", md{"a": "1", "b": "23"}, ""),
			made("x", md{"a": "12", "b": "3"}, ""), false},
		{"first of", inbox.FirstOf(inbox.ByMetadata("a"), inbox.ByMetadata("b")), made("x", md{"a": "1"}, ""),
			made("y", md{"a": "1", "b": "2"}, ""), true},
		{"first of, another one", inbox.FirstOf(inbox.ByMetadata("a"), inbox.ByMetadata("b")), value("a", "1"), value("b", "1"), false},
		{"within type", inbox.ByMetadata("k").WithinType(), made("x", md{"k": "1", "name": "paid"}, ""),
			made("y", md{"k": "1", "name": "paid"}, ""), true},
		{"within type", inbox.ByMetadata("k").WithinType(), made("x", md{"k": "1", "name": "paid"}, ""),
			made("x", md{"k": "1", "ce_type": "sent"}, ""), false},
		{"within type's boundary", inbox.ByMetadata("k").WithinType(), made("x", md{"k": "12", "name": "a"}, ""),
			made("x", md{"k": "2", "name": "a1"}, ""), false},
	} {
		one, two := keyOf(t, c.key, c.one), keyOf(t, c.key, c.two)
		assert.Equal(t, c.same, one == two, "%s: %q and %q", c.name, one, two)
	}
	assert.NotEqual(t, keyOf(t, at("t", "0", 7), made("a", nil, "")), keyOf(t, at("t", "0", 8), made("a", nil, "")))
	assert.NotEqual(t, keyOf(t, at("t1", "0", 7), made("a", nil, "")), keyOf(t, at("t", "10", 7), made("a", nil, "")))
	assert.NotEqual(t, keyOf(t, at("t", "0", math.MinInt64), made("a", nil, "")), keyOf(t, at("t", "0", math.MaxInt64), made("a", nil, "")))
}

func TestFirstOfAndJoinedCannotBeConfused(t *testing.T) {
	a, b := inbox.ByMetadata("a"), inbox.ByMetadata("b")
	both := message.Metadata{"a": "x", "b": "y"}
	mixed := inbox.FirstOf(inbox.Joined(a, b), inbox.ByMetadata("c"))
	forged := keyOf(t, inbox.Joined(a, b), made("u", both, ""))
	assert.NotEqual(t, keyOf(t, mixed, made("u", both, "")), keyOf(t, mixed, made("u", message.Metadata{"c": forged}, "")))
	assert.NotEqual(t, inbox.FirstOf(a, b).String(), inbox.Joined(a, b).String(), "what is stored with the consumer")
	assert.NotEqual(t, inbox.Joined(a, b).String(), inbox.Joined(b, a).String())
	assert.NotEqual(t, inbox.Joined(inbox.Joined(a), b).String(), inbox.Joined(a, inbox.Joined(b)).String())
	assert.NotEqual(t, keyOf(t, inbox.FirstOf(a, b), made("u", message.Metadata{"a": "x"}, "")),
		keyOf(t, inbox.FirstOf(a, b), made("u", message.Metadata{"b": "x"}, "")), "the value of another one")
}

func TestKeysSayWhatAMessageLacks(t *testing.T) {
	cause := errors.New("no connection")
	for want, c := range map[string]struct {
		key inbox.Key
		msg *message.Message
	}{
		"the message has no UUID":                {inbox.ByUUID(), made("", nil, "x")},
		`the metadata has no "order"`:            {inbox.ByMetadata("order"), made("a", nil, "x")},
		`the metadata has no "empty"`:            {inbox.ByMetadata("empty"), made("a", message.Metadata{"empty": ""}, "x")},
		`the metadata has no "ce_source"`:        {inbox.ByCloudEvent(), made("a", message.Metadata{"ce_id": "1"}, "x")},
		`the metadata has no "ce_id"`:            {inbox.ByCloudEvent(), made("a", message.Metadata{"ce_source": "1"}, "x")},
		"names no field":                         {inbox.ByJSON(), made("a", nil, "{}")},
		"the payload is not JSON":                {inbox.ByJSON("a"), made("a", nil, "x")},
		`boolean at "a"`:                         {inbox.ByJSON("a"), made("a", nil, `{"a":null}`)},
		`boolean at "b"`:                         {inbox.ByJSON("b"), made("a", nil, `{"b":{"c":1}}`)},
		`boolean at "c.d"`:                       {inbox.ByJSON("c.d"), made("a", nil, `{"c":1}`)},
		`boolean at "list"`:                      {inbox.ByJSON("list"), made("a", nil, `[1]`)},
		`at "latin1" has a character that is`:    {inbox.ByJSON("latin1"), made("a", nil, "{\"latin1\":\"M\xfcller\"}")},
		`at "half" has a character that is no`:   {inbox.ByJSON("half"), made("a", nil, `{"half":"\ud83d"}`)},
		`at "halves" has a character that is no`: {inbox.ByJSON("halves"), made("a", nil, `{"halves":"\udc00\ud83d\ud83e"}`)},
		`at "slash" has a character that is no`:  {inbox.ByJSON("slash"), made("a", nil, `{"slash":"\\\ud83d\\\uDE00"}`)},
		"something follows the first value":      {inbox.ByJSON("id"), made("a", nil, `{"id":1}`+"\n"+`{"id":2}`)},
		"something follows the first va":         {inbox.ByJSON("id"), made("a", nil, `{"id":1}}`)},
		`topic ("") and partition ("0")`:         {at("", "0", 1), made("a", nil, "x")},
		`topic ("t") and partition ("")`:         {at("t", "", 1), made("a", nil, "x")},
		"inbox.ByPosition was given no":          {inbox.ByPosition(nil), made("a", nil, "x")},
		"inbox.ByFunc was given no":              {inbox.ByFunc("f", nil), made("a", nil, "x")},
		`func:"empty" is empty`:                  {inbox.ByFunc("empty", func(*message.Message) (string, error) { return "", nil }), made("a", nil, "x")},
		"no connection":                          {inbox.ByFunc("f", func(*message.Message) (string, error) { return "", cause }), made("a", nil, "x")},
		`the metadata has no "j2"`:               {inbox.Joined(inbox.ByUUID(), inbox.ByMetadata("j2")), made("a", nil, "x")},
		"joined() is empty":                      {inbox.Joined(), made("a", nil, "x")},
		"first() is empty":                       {inbox.FirstOf(), made("a", nil, "x")},
		`the metadata has no "f2"`:               {inbox.FirstOf(inbox.ByMetadata("f1"), inbox.ByMetadata("f2")), made("a", nil, "x")},
		"no topic to qualify":                    {inbox.ByUUID().WithinTopic(), made("a", nil, "x")},
		"no type to qualify":                     {inbox.ByUUID().WithinType(), made("a", nil, "x")},
		"the message has no UUID: set Key to so": {inbox.ByUUID().WithinType(), made("", message.Metadata{"name": "n"}, "x")},
	} {
		value, err := c.key.Of(c.msg)
		require.ErrorContains(t, err, want)
		assert.Empty(t, value, want)
	}
	_, err := inbox.FirstOf(inbox.ByFunc("f", func(*message.Message) (string, error) { return "", cause }), inbox.ByUUID()).
		Of(made("a", nil, "x"))
	require.ErrorIs(t, err, cause, "an error is not a message without the key")
	for _, payload := range []string{"{\"id\":\"\xff\"}", `{"id":1}{"id":2}`} {
		_, err := inbox.FirstOf(inbox.ByJSON("id"), inbox.ByUUID()).Of(made("a", nil, payload))
		require.Error(t, err, "an earlier release took a key of it")
	}
}

func TestWatermillsHashersAreKeys(t *testing.T) {
	for name, hasher := range map[string]middleware.MessageHasher{
		"adler32": middleware.NewMessageHasherAdler32(middleware.MessageHasherReadLimitMinimum),
		"sha256":  middleware.NewMessageHasherSHA256(middleware.MessageHasherReadLimitMinimum),
		"field":   middleware.NewMessageHasherFromMetadataField("field"),
	} {
		k := inbox.ByFunc(name, hasher)
		field := message.Metadata{"field": "1"}
		assert.Equal(t, keyOf(t, k, made("a", field, "x")), keyOf(t, k, made("b", field, "x")), name)
		assert.NotEqual(t, keyOf(t, k, made("a", field, "x")), keyOf(t, k, made("a", message.Metadata{"field": "2"}, "y")), name)
		assert.Contains(t, k.String(), name)
	}
}

func TestKeysDescribeThemselvesApart(t *testing.T) {
	a := inbox.ByMetadata("a")
	seen := map[string]int{}
	for i, k := range []inbox.Key{
		inbox.ByUUID(), a, inbox.ByMetadata(`b"`), inbox.ByCloudEvent(), inbox.ByJSON("a"), inbox.ByJSON("a", "b"),
		inbox.ByJSON("a,b"), inbox.ByPayload(), at("t", "0", 1), inbox.ByFunc("a", nil), inbox.ByFunc("b", nil),
		inbox.Joined(a), inbox.FirstOf(a), inbox.Joined(a, a), a.WithinType(), a.WithinTopic(), a.WithinTopic().WithinType(),
	} {
		other, taken := seen[k.String()]
		assert.False(t, taken, "%d and %d are both %s", i, other, k)
		seen[k.String()] = i
	}
	assert.Equal(t, inbox.ByUUID().String(), inbox.Key{}.String())
}

func TestWithinTopicTakesTheTopicOfTheRouter(t *testing.T) {
	pubsub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 4}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	keys := make(chan string, 4)
	for _, topic := range []string{"orders", "payments"} {
		router.AddConsumerHandler(topic, topic, pubsub, func(msg *message.Message) error {
			value, err := inbox.ByUUID().WithinTopic().Of(msg)
			assert.NoError(t, err)
			keys <- value
			return nil
		})
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(t.Context()) }()
	<-router.Running()
	seen := map[string]int{}
	for _, topic := range []string{"orders", "payments", "orders", "payments"} {
		require.NoError(t, pubsub.Publish(topic, made("a", nil, "")))
		seen[<-keys]++
	}
	assert.Len(t, seen, 2)
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
}

func TestAKeyIsOfTheMessage(t *testing.T) {
	t.Parallel()
	for _, key := range []inbox.Key{
		{}, inbox.ByMetadata(`"position`), inbox.ByJSON("func:", "a/topic"), inbox.Joined(inbox.ByPayload(), inbox.ByCloudEvent()).WithinType(),
	} {
		assert.True(t, key.OfMessage(), key)
	}
	for _, key := range []inbox.Key{
		inbox.ByFunc("x", nil), inbox.ByPosition(nil), inbox.ByUUID().WithinTopic(), inbox.FirstOf(inbox.ByUUID(), inbox.ByFunc(`"`, nil)),
	} {
		assert.False(t, key.OfMessage(), key)
	}
}

func TestAKeyIsWhatMadeIt(t *testing.T) {
	t.Parallel()
	place, named := inbox.ByPosition(nil), []inbox.Key{
		inbox.ByMetadata("position"), inbox.ByFunc("position", nil), inbox.ByFunc(`x"/topic`, nil).WithinType(), inbox.ByJSON("position", "func:"),
	}
	both := func(key inbox.Key, check func(key inbox.Key)) { // as a service has it, and as it is stored
		check(key)
		read, err := inbox.Internals{}.ParseKey(key.String())
		require.NoError(t, err)
		check(read)
	}
	for _, key := range named {
		both(key, func(key inbox.Key) { assert.False(t, key.ByPlace(), key) })
	}
	for _, key := range []inbox.Key{
		place, place.WithinType().WithinTopic(), inbox.Joined(inbox.ByUUID(), place), inbox.FirstOf(inbox.ByUUID(), inbox.Joined(place).WithinType()),
	} {
		both(key, func(key inbox.Key) { assert.True(t, key.ByPlace(), key) })
	}
	both(inbox.ByFunc("/topic", nil).WithinType(), func(key inbox.Key) {
		inner, perTopic, perType := key.Unqualified()
		assert.Equal(t, []any{`func:"/topic"`, false, true}, []any{inner.String(), perTopic, perType})
	})
	both(inbox.Joined(inbox.ByUUID().WithinTopic()), func(key inbox.Key) {
		inner, perTopic, perType := key.Unqualified()
		assert.Equal(t, []any{"joined(uuid/topic)", false, false}, []any{inner.String(), perTopic, perType})
	})
	both(inbox.ByMetadata("a").WithinType().WithinTopic(), func(key inbox.Key) {
		inner, perTopic, perType := key.Unqualified()
		assert.Equal(t, []any{`metadata:"a"`, true, true}, []any{inner.String(), perTopic, perType})
		assert.True(t, inner.OfFields())
		assert.False(t, key.OfFields(), "with its qualifiers it is no business key of all messages")
	})
	for _, key := range []inbox.Key{{}, inbox.ByFunc("metadata:", nil), inbox.Joined(inbox.ByMetadata("a"))} {
		both(key, func(key inbox.Key) { assert.False(t, key.OfFields(), key) })
	}
	assert.True(t, inbox.ByJSON("a", "b").OfFields())
}

package tracing_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

// TestEveryStringIsText: the OTLP exporter refuses a whole batch of spans where one string is
// no UTF-8.
func TestEveryStringIsText(t *testing.T) {
	b := newBed(t)
	const bytes = "\xc8\x01 is no text"
	boom := errors.New("boom: " + bytes)
	msg := newMessage(bytes)
	msg.Metadata.Set("correlation_id", bytes)
	require.Error(t, b.Publisher(b.Sender(&publisher{do: func([]*message.Message) error { return boom }})).Publish(bytes, msg))
	key, err := inbox.Joined(inbox.ByMetadata("source"), inbox.ByUUID()).Of(joinable())
	require.NoError(t, err)
	require.False(t, utf8.ValidString(key), "so this happens")
	_, err = b.Middleware(func(m *message.Message) ([]*message.Message, error) {
		duplicate(m.Context(), b.InboxObserver(), inbox.Event{
			Consumer: bytes, MessageID: key, UUID: bytes, Topic: bytes, Type: bytes, Reason: bytes, Err: boom,
		})
		return nil, boom
	})(msg)
	require.Error(t, err)
	b.InboxObserver().Observe(t.Context(), inbox.Event{Kind: inbox.KindParked, Topic: bytes, Err: boom, Metadata: msg.Metadata})
	b.RelayObserver().Observe(t.Context(), outbox.Event{Kind: outbox.KindParked, Topic: bytes, UUID: bytes, Reason: bytes, Err: boom, Metadata: msg.Metadata})
	text := func(s string) { assert.True(t, utf8.ValidString(s), "%q", s) }
	list := func(all []attribute.KeyValue) {
		for _, a := range all {
			text(a.Value.String())
		}
	}
	require.Len(t, b.kept.GetSpans(), 5)
	for _, span := range b.kept.GetSpans() {
		text(span.Name)
		text(span.Status.Description)
		list(span.Attributes)
		for _, e := range span.Events {
			text(e.Name)
			list(e.Attributes)
		}
	}
}

// joinable has a field whose length is no letter.
func joinable() *message.Message {
	msg := newMessage("1")
	msg.Metadata.Set("source", strings.Repeat("x", 200))
	return msg
}

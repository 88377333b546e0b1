package tracing_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// handleABatch handles two messages in one batch, after a first try of it failed.
func handleABatch(t *testing.T, b *bed) {
	t.Helper()
	db := testdb.On(t, "sqlite")
	store := rig.NewStore(t, db.DB, inbox.Config{Observers: []inbox.Observer{b.InboxObserver()}})
	batch := middleware.Batch{Inbox: middleware.Inbox{Store: store, Consumer: "billing"}, Max: 3, Linger: rig.Patience}
	consume := batch.ConsumerHandler(func(_ context.Context, msgs []*message.Message) error {
		if len(msgs) == 3 {
			return middleware.Failed(msgs[0], errors.New("boom"))
		}
		return nil
	})
	handle := b.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, consume(msg) })
	var answers []<-chan error
	for range 3 {
		msg := newMessage(watermill.NewUUID())
		require.NoError(t, b.Publisher(&publisher{}).Publish("orders", msg))
		msg.SetContext(context.Background())
		answers = append(answers, rig.Handle(handle, msg))
	}
	for _, a := range answers {
		require.NoError(t, rig.Within(t, a, "a message is not answered"))
	}
}

func TestEachTryOfABatchIsASpanWithLinks(t *testing.T) {
	b := newBed(t)
	handleABatch(t, b)
	all := b.all("batch")
	require.Len(t, all, 2)
	first, second := all[0], all[1]
	assert.Equal(t, "named", attributes(first.Attributes)["millrace.reason"])
	assert.Equal(t, "3", attributes(first.Attributes)["millrace.count"])
	assert.Contains(t, attributes(first.Attributes), "millrace.gathered")
	assert.Equal(t, "committed", attributes(second.Attributes)["millrace.reason"])
	assert.Equal(t, "2", attributes(second.Attributes)["millrace.count"])
	assert.NotContains(t, attributes(second.Attributes), "millrace.gathered")
	assert.False(t, second.StartTime.Before(first.EndTime), "one after the other")
	assert.Len(t, second.Links, 2)
	for _, span := range all {
		assert.False(t, span.Parent.IsValid(), "it belongs to several traces")
		for _, link := range span.Links {
			back := false
			for _, process := range b.all("process") {
				if process.SpanContext.SpanID() != link.SpanContext.SpanID() {
					continue
				}
				for _, l := range process.Links {
					back = back || l.SpanContext.SpanID() == span.SpanContext.SpanID()
				}
			}
			assert.True(t, back, "the delivery links to the batch")
		}
	}
}

func TestNoSpanOfABatchIfNoneOfItsMessagesIsSampled(t *testing.T) {
	b := newBed(t, sdktrace.WithSampler(sdktrace.NeverSample()))
	handleABatch(t, b)
	assert.Empty(t, b.kept.GetSpans())
}

package tests_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"

	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// delivered is a service that handles one message, which was made in a trace.
type delivered struct {
	*bed
	feed *rig.Feed
	msg  *message.Message
}

// deliver sends a message that carries a context and waits for the ack.
func (d *delivered) deliver(metadata message.Metadata) {
	d.Helper()
	ctx, request := d.service.Start(d.Context(), "request")
	request.End()
	d.msg = message.NewMessageWithContext(ctx, "7", []byte(secret))
	maps.Copy(d.msg.Metadata, metadata)
	require.NoError(d, d.Publisher(&rig.Publisher{}).Publish("orders", d.msg))
	c := d.msg.Copy()
	d.feed.Send(d, c)
	require.True(d, rig.Answer(d, c))
}

// durable starts a service on the inbox's table.
func (b *bed) durable(d pubsub.Durable, h message.NoPublishHandlerFunc, inner ...message.HandlerMiddleware) *delivered {
	b.Helper()
	d.Store, d.Consumer, d.Poll = b.store, "billing", 20*time.Millisecond
	d.MinBackoff, d.MaxBackoff = time.Millisecond, 5*time.Millisecond
	feed := rig.NewFeed()
	sub, err := d.Decorate(feed)
	require.NoError(b, err)
	router := b.router(append([]message.HandlerMiddleware{millrace.Inbox{Store: b.store}.Middleware}, inner...)...)
	router.AddConsumerHandler("billing", "orders", sub, h)
	b.run(router)
	return &delivered{bed: b, feed: feed}
}

var errFirst = errors.New("the first run fails")

// What is stored and delivered later belongs to the trace in which it was made, and says
// that it was delivered before.
func TestStoredMessagesStayInTheirTrace(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pubsub.Mode{"on failure": pubsub.StoreOnFailure, "first": pubsub.StoreFirst} {
		t.Run(name, func(t *testing.T) {
			testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
				runs := 0
				d := b.durable(pubsub.Durable{Mode: mode, Concurrency: 1}, func(msg *message.Message) error {
					if runs++; runs == 1 {
						return errFirst
					}
					return effect(msg)
				})
				d.deliver(nil)
				b.spans(5) // the request, create, two of process, retried
				first, second := b.all("process orders")[0], b.all("process orders")[1]
				b.isChild(first, b.all("create orders")[0])
				b.isChild(second, b.all("create orders")[0])
				assert.Equal(t, codes.Error, first.Status.Code)
				assert.NotContains(t, attributes(first.Attributes), "millrace.redelivered")
				assert.Equal(t, codes.Unset, second.Status.Code)
				assert.Equal(t, "true", attributes(second.Attributes)["millrace.redelivered"])
				assert.Equal(t, "2", attributes(second.Attributes)["millrace.attempt"])
			}))
		})
	}
}

// Messages that a handler returned, and that could not be published, are published later as
// they were stored: with the context that they were made in.
func TestRedispatchedOutcomesStayInTheirTrace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		published := &rig.Publisher{}
		published.FailWith(errors.New("the broker is down"))
		d := &delivered{bed: b, feed: rig.NewFeed()}
		router := b.router(millrace.Inbox{Store: b.store}.Middleware, b.Returned)
		router.AddPublisherDecorators(b.Decorate)
		router.AddHandler("billing", "orders", d.feed, "invoices", published, bill)
		b.run(router)

		msg := message.NewMessage("7", []byte(secret))
		d.feed.Send(t, msg)
		require.False(t, rig.Answer(t, msg))
		stored, err := admin.New(b.store).Unsettled(t.Context(), admin.ConsumerFilter{}, 0, 10)
		require.NoError(t, err)
		require.Len(t, stored, 1)
		kept := maps.Clone(stored[0].Messages[0].Metadata)

		published.FailWith(nil)
		sent, err := b.store.Redispatch(t.Context(), b.Publisher(published), 0)
		require.NoError(t, err)
		assert.Equal(t, 1, sent)
		assert.Equal(t, kept, published.Messages()[0].Metadata)

		create := b.all("create invoices")
		require.Len(t, create, 1, b.tree())
		b.isChild(create[0], b.all("process orders")[0])
		sends := b.all("send invoices")
		require.Len(t, sends, 2, b.tree())
		for _, send := range sends {
			b.isChild(send, create[0])
		}
		assert.Equal(t, codes.Error, sends[0].Status.Code)
	}))
}

// That an outcome is settled is known only after the delivery.
func TestSettledAfterTheDelivery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		d := &delivered{bed: b, feed: rig.NewFeed()}
		router := b.router(millrace.Inbox{Store: b.store}.Middleware, b.Returned)
		router.AddHandler("billing", "orders", d.feed, "invoices", &rig.Publisher{}, bill)
		b.run(router)
		d.deliver(nil)
		require.NoError(t, b.store.Close(context.WithoutCancel(t.Context())))
		require.Len(t, b.all("settled orders"), 1, b.tree())
		b.isChild(b.all("settled orders")[0], b.all("process orders")[0])
	}))
}

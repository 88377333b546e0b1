package tests_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// keyBodies: which deliveries are the same message.
var keyBodies = []testdb.Body{
	{Name: "keys that differ only in case or trailing space", Why: "keys are bytes: no collation decides", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect)
		keys := []string{
			"order", "Order", "ORDER", "order ", "order  ", " order", "örder", "orDer\x00", "order\x00",
			"0b6e1a6e-6ff1-4dd3-8d5a-0d2a8b1d5f0a", "0B6E1A6E-6FF1-4DD3-8D5A-0D2A8B1D5F0A",
			"0b6e1a6e6ff14dd38d5a0d2a8b1d5f0a", "\x0b\x6e\x1a\x6e\x6f\xf1\x4d\xd3\x8d\x5a\x0d\x2a\x8b\x1d\x5f\x0a",
		}
		for _, key := range keys {
			must(t, h, message.NewMessage(key, nil))
			must(t, h, message.NewMessage(key, nil))
		}
		assert.Equal(t, len(keys), b.effects())
	})},
	{Name: "keys of any bytes and length", Why: "no key is cut, and none is taken for another", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		long := strings.Repeat("k", 300)
		keys := []string{string(all), "\x00", "\xff\xfe", long, long + "a", long + "b", long[:126], long[:127], long[:128], long[:129]}
		process := on(b.process())
		for _, key := range keys {
			must(t, b.inbox(effect), message.NewMessage(key, nil))
			must(t, b.inbox(effect, process), message.NewMessage(key, nil))
		}
		assert.Equal(t, len(keys), b.effects())
		for _, key := range keys {
			story := rig.Story(t, b.store, key)
			assert.Len(t, story.Claims, 1, "story of %q", key)
		}
	})},
	{Name: "two consumers of one message", Why: "each consumer has a memory of its own", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		for _, consumer := range []string{"billing", "shipping", "Billing", "billing "} {
			h := b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = consumer })
			must(t, h, again(msg))
			must(t, h, again(msg))
		}
		assert.Equal(t, 4, b.effects())
	})},
	{Name: "two namespaces", Why: "services that share tables do not share consumers", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		for _, namespace := range []string{"", "a", "b"} {
			must(t, b.inbox(effect, on(b.newStore(b.db.DB, inbox.Config{Namespace: namespace}))), again(msg))
		}
		assert.Equal(t, 3, b.effects())
	})},
	{Name: "one UUID on two topics", Why: "a key counts per consumer, and per topic where that is asked for", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		deliver := func(key inbox.Key, consumer, topic string, msg *message.Message) {
			s := b.oneHandler(topic, effect, millrace.Inbox{Store: b.store, Consumer: consumer, Key: key}.Middleware)
			assert.True(t, s.deliver(msg))
			require.NoError(t, s.router.Close())
		}
		plain := newMessage("x")
		deliver(inbox.ByUUID(), "plain", "orders", again(plain))
		deliver(inbox.ByUUID(), "plain", "returns", again(plain))
		assert.Equal(t, 1, b.effectsOf(plain.UUID))
		qualified := newMessage("x")
		deliver(inbox.ByUUID().WithinTopic(), "qualified", "orders", again(qualified))
		deliver(inbox.ByUUID().WithinTopic(), "qualified", "returns", again(qualified))
		assert.Equal(t, 2, b.effectsOf(qualified.UUID))
	})},
	{Name: "consumer names at the limit", Why: "a name longer than its column is refused, never cut", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		name := strings.Repeat("n", 254)
		for _, consumer := range []string{name + "a", name + "b"} {
			must(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = consumer }), again(msg))
		}
		assert.Equal(t, 2, b.effects())
		rig.MustFail(t, b.inbox(effect, func(i *millrace.Inbox) { i.Consumer = name + "ab" }), again(msg), "longer than 255 bytes")
	})},
	{Name: "another key for a known consumer", Why: "what was seen under one key says nothing under another", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage("x")
		msg.Metadata.Set("order", "7")
		must(t, b.inbox(effect), again(msg))
		byOrder := func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("order") }
		rig.MustFail(t, b.inbox(effect, on(b.process()), byOrder), again(msg), inbox.ErrKeyChanged, "Epoch to 1")
		must(t, b.inbox(effect, on(b.process()), byOrder, func(i *millrace.Inbox) { i.Epoch = 1 }), again(msg))
		assert.Equal(t, 2, b.effects())
	})},
	{Name: "a wrong setting at start", Why: "the plugin says so: Router.Run returns it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		must(t, b.inbox(effect), newMessage("x"))
		run := func(i millrace.Inbox) error {
			router, err := message.NewRouter(message.RouterConfig{}, b.events)
			require.NoError(t, err)
			router.AddPlugin(i.Plugin())
			router.AddMiddleware(i.Middleware)
			router.AddConsumerHandler("billing", "orders", rig.NewFeed(), func(*message.Message) error { return nil })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			go func() {
				select {
				case <-router.Running():
					cancel() // it does run
				case <-ctx.Done():
				}
			}()
			return router.Run(ctx)
		}
		require.NoError(t, run(millrace.Inbox{Store: b.process()}))
		require.ErrorContains(t, run(millrace.Inbox{Store: b.process(), Options: inbox.Options{Retention: 1}}), "Retention")
		require.ErrorIs(t, run(millrace.Inbox{Store: b.process(), Key: inbox.ByPayload()}), inbox.ErrKeyChanged)
		require.ErrorContains(t, run(millrace.Inbox{}), "a Store is required")
		empty := b.newStore(b.db.DB, inbox.Config{TablePrefix: "elsewhere_"})
		require.ErrorContains(t, run(millrace.Inbox{Store: empty}), "Store.Migrate")
	})},
	{Name: "a business key collapses different messages", Why: "that is what it is for: OnCollision defaults to dropping", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, func(i *millrace.Inbox) { i.Key = inbox.ByJSON("order.id") })
		must(t, h, newMessage(`{"order":{"id":7},"note":"first"}`))
		must(t, h, newMessage(`{"order":{"id":7},"note":"second"}`))
		must(t, h, newMessage(`{"order":{"id":"7"}}`))
		assert.Equal(t, 2, b.effects())
		assert.Equal(t, 1, b.events.Count("collision"))
	})},
	{Name: "neither a key nor a UUID", Why: "the metadata tells messages of one payload apart", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		h := b.inbox(effect, func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("order_id") })
		for n, flag := range []string{"", "", "true"} {
			msg := message.NewMessage("", []byte("cancel"))
			msg.Metadata.Set("orderId", fmt.Sprint(n%2))
			msg.Metadata.Set("_watermill_amqp_redelivered", flag)
			must(t, h, msg)
		}
		found, err := admin.New(b.store).Find(t.Context(), admin.Filter{Status: admin.FailedTerminal}, 0, admin.MaxPage)
		require.NoError(t, err)
		assert.Len(t, found, 2)
		assert.Zero(t, b.effects())
	})},
	{Name: "messages of a megabyte", Why: "size does not change what is guaranteed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		msg := newMessage(strings.Repeat("x", 1<<20))
		h := b.inbox(effect)
		must(t, h, again(msg))
		must(t, h, again(msg))
		assert.Equal(t, 1, b.effects())
		other := message.NewMessage(msg.UUID, bytes.Repeat([]byte("y"), 1<<20))
		must(t, h, other)
		parked := rig.Parked(t, b.store)
		require.Len(t, parked, 1)
		assert.True(t, bytes.Equal(other.Payload, parked[0].Payload))
	})},
}

// oneHandler starts a router with a handler that publishes nothing.
func (b *bed) oneHandler(topic string, h message.HandlerFunc, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	s := &service{bed: b, feed: rig.NewFeed(), published: &rig.Publisher{}}
	router := b.router(middlewares...)
	router.AddConsumerHandler("billing", topic, s.feed, func(msg *message.Message) error {
		_, err := h(msg)
		return err
	})
	s.run(router)
	return s
}

package durable_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// carriedBodies: a message comes with the context of the handler that published it, which a queue gave another message.
var carriedBodies = []testdb.Body{
	{Name: "a message that comes with the context of a stored one", Why: "it is another message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		channel := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
		defer func() { assert.NoError(t, channel.Close()) }()
		durable, first, next, runs := quick(b.store), newMessage(), newMessage(), &counter{}
		sub, err := durable.Decorate(channel)
		require.NoError(t, err)
		router := rig.NewRouter(b)
		router.AddPlugin(b.store.Plugin())
		router.AddMiddleware(inboxOf(durable))
		router.AddConsumerHandler(consumer, "orders", sub, func(msg *message.Message) error {
			if n := runs.run(msg); msg.UUID == first.UUID && n == 1 {
				return errBoom
			}
			assert.Equal(t, runs.of(msg), inbox.Attempt(msg.Context()))
			if msg.UUID == first.UUID {
				next.SetContext(context.WithoutCancel(msg.Context()))
				if err := channel.Publish("orders", next); err != nil {
					return err
				}
			}
			return effect(msg)
		})
		rig.Run(b, router)
		require.NoError(t, channel.Publish("orders", first))
		rig.Eventually(b, "both are handled", func() bool { return b.effects(first)+b.effects(next) == 2 && b.rows() == 0 })
	})},
	{Name: "the context of a stored message at another consumer", Why: "no queue delivers the message there", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		first, next := newMessage(), newMessage()
		require.NoError(t, b.acks(b.storeIn(inbox.QueueConfig{}, first), b.within(giving(next))))
		require.NoError(t, do(b.mailing(inbox.Key{}), next))
		assert.Equal(t, []int{1, 1}, []int{b.effects(first), b.effects(next)})
	})},
	{Name: "the context of a queue's message at another consumer, and no key", Why: "the inbox keeps its own message", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		first, next := newMessage(), broken("bad")
		queue := rig.Queue(b, b.store, inbox.QueueConfig{Consumer: consumer})
		straight, _ := queue.Straight("orders", first)
		require.NoError(t, do(b.within(giving(next)), straight))
		require.NoError(t, do(b.mailing(byOrder), next))
		assert.Equal(t, next.UUID, b.only(b.store, admin.FailedTerminal).UUID)
	})},
}

// giving has its effect, and gives next the context of its message.
func giving(next *message.Message) message.HandlerFunc {
	return silent(func(msg *message.Message) error {
		next.SetContext(context.WithoutCancel(msg.Context()))
		return effect(msg)
	})
}

// mailing is a consumer without a queue.
func (b *bed) mailing(key inbox.Key) message.HandlerFunc {
	b.Helper()
	return millrace.Inbox{Store: b.store, Consumer: "mails", Key: key}.Middleware(silent(effect))
}

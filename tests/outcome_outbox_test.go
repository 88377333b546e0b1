package tests_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// leftToOutboxBodies: a release without Inbox.Outbox leaves an outcome to one with it.
var leftToOutboxBodies = []testdb.Body{
	{Name: "a crash between commit and publish, before a release with an outbox", Why: "it gets the outcome, with its topic", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		b.leavesToOutbox(func(router *message.Router, feed *rig.Feed, out *box.Publisher) {
			router.AddHandler("billing", "orders", feed, "bills", out, invoice)
		})
	})},
	{Name: "a crash between commit and publish, before a handler that publishes by itself", Why: "it gets the outcome", Run: testdb.With(newBed, func(_ *testing.T, b *bed) {
		b.leavesToOutbox(func(router *message.Router, feed *rig.Feed, _ *box.Publisher) {
			router.AddConsumerHandler("billing", "orders", feed, func(*message.Message) error { return nil })
		})
	})},
	{Name: "a queue's message whose outcome waits, before a release with an outbox", Why: "it gets the outcome", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		serve := func(store *inbox.Store, out message.Publisher, to message.Publisher) (*message.Router, *rig.Feed) {
			feed := rig.NewFeed()
			sub, err := pubsub.Durable{Store: store, Consumer: "billing", Poll: 20 * time.Millisecond, MinBackoff: time.Millisecond}.Decorate(feed)
			require.NoError(t, err)
			router := rig.NewRouter(t)
			router.AddPlugin(store.Plugin())
			router.AddMiddleware(millrace.Inbox{Store: store, Outbox: out}.Middleware)
			router.AddHandler("billing", "orders", sub, "invoices", to, invoice)
			rig.Run(t, router)
			return router, feed
		}
		broker := &rig.Publisher{}
		broker.FailWith(errBoom)
		router, feed := serve(b.store, nil, broker)
		msg := newMessage("x")
		feed.Send(t, msg)
		assert.True(t, rig.Answer(t, msg))
		require.NoError(t, router.Close())
		require.Equal(t, 1, b.outcomesLeft())
		pool := b.db.Open(b).DB
		out, err := box.NewPublisher(pool, box.Config{})
		require.NoError(t, err)
		serve(b.newStore(pool, inbox.Config{}), out, out)
		rig.Eventually(t, "it is closed", func() bool { return b.count(`SELECT COUNT(*) FROM millrace_messages`) == 0 })
		assert.Equal(t, []int{1, 1, 0}, []int{b.effects(), b.count(`SELECT COUNT(*) FROM millrace_outbox`), b.outcomesLeft()})
	})},
}

// leavesToOutbox has a process die between commit and publish. The next one has an outbox, and gets the message twice.
func (b *bed) leavesToOutbox(add func(*message.Router, *rig.Feed, *box.Publisher)) {
	b.Helper()
	msg, crashed := newMessage("x"), b.newService(invoice, b.patient().Middleware)
	crashed.published.FailWith(errBoom)
	assert.False(b, crashed.deliver(again(msg)))
	require.NoError(b, crashed.router.Close())

	pool := b.db.Open(b).DB
	store := b.newStore(pool, inbox.Config{})
	out, err := box.NewPublisher(pool, box.Config{})
	require.NoError(b, err)
	s := &service{bed: b, feed: rig.NewFeed()}
	router := rig.NewRouter(b)
	router.AddPlugin(store.Plugin())
	router.AddMiddleware(millrace.Inbox{Store: store, Outbox: out}.Middleware)
	add(router, s.feed, out)
	s.run(router)
	for range 2 {
		assert.True(b, s.deliver(again(msg)))
	}
	var topics []string
	require.NoError(b, b.db.SelectContext(b.Context(), &topics, `SELECT topic FROM millrace_outbox`))
	assert.Equal(b, []string{"invoices"}, topics)
	assert.Equal(b, []int{1, 0}, []int{b.effects(), b.outcomesLeft()})
}

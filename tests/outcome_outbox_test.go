package tests_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
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

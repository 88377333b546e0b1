package gate_test

import (
	"context"
	"errors"
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

// carriedBodies: a gate without Inbox, whose messages another handler publishes with its context.
var carriedBodies = []testdb.Body{
	{Name: "the transaction of a handler that publishes", Why: "the gate has no part in it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		totals, tries := b.totals()
		fails := true
		first := b.publishing(millrace.Inbox{Store: b.store}, func(msg *message.Message) error {
			if err := apply(msg); err != nil || !fails {
				return err
			}
			fails = false
			total := change("total", 1)
			total.SetContext(context.WithoutCancel(msg.Context()))
			if err := totals.Publish("totals", total); err != nil {
				return err
			}
			assert.ErrorContains(t, rig.Within(t, tries, "the gate decides"), "carries the transaction")
			return errFails
		})
		msg := change("a", 1)
		assert.False(t, first.deliver(again(msg)))
		b.passes(tries)
		assert.True(t, first.deliver(again(msg)))
		assert.Equal(t, upTo(1), b.applied("a"))
		assert.Equal(t, upTo(1), b.applied("total"))
		assert.EqualValues(t, 1, b.totalsAt("total"))
		b.nothingLeft()
	})},
	{Name: "a message that the gate parks", Why: "it is not the one whose handler published it", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		totals, tries := b.totals()
		total := change("total", 1)
		delete(total.Metadata, inbox.VersionField)
		first := b.publishing(millrace.Inbox{Store: b.store}, func(msg *message.Message) error {
			total.SetContext(context.WithoutCancel(msg.Context()))
			if err := totals.Publish("totals", total); err != nil {
				return err
			}
			assert.ErrorContains(t, rig.Within(t, tries, "the gate decides"), "carries the transaction")
			return apply(msg)
		})
		assert.True(t, first.deliver(change("a", 1)))
		assert.Equal(t, upTo(1), b.applied("a"))
		b.passes(tries)
		parked := rig.Find(t, b.store, admin.Filter{})
		require.Len(t, parked, 1)
		assert.Equal(t, total.UUID, parked[0].UUID)
	})},
	{Name: "Skip of a handler that publishes", Why: "it lets no other message past the gate", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		totals, tries := b.totals()
		skips := func(*message.Message) bool { return true }
		first := b.publishing(millrace.Inbox{Store: b.store, Skip: skips}, func(msg *message.Message) error {
			total := change("total", 1)
			total.SetContext(context.WithoutCancel(msg.Context()))
			return totals.Publish("totals", total)
		})
		assert.True(t, first.deliver(change("a", 1)))
		b.passes(tries)
		assert.EqualValues(t, 1, b.totalsAt("total"))
	})},
}

// totals starts a consumer with a gate of its own, behind a channel that keeps the contexts of messages. It tells how
// the first tries end.
func (b *bed) totals() (message.Publisher, <-chan error) {
	b.Helper()
	channel := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
	b.Cleanup(func() { assert.NoError(b, channel.Close()) })
	tries := make(chan error, 64)
	router := rig.NewRouter(b)
	router.AddPlugin(b.store.Plugin())
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			select {
			case tries <- err:
			default:
			}
			return produced, err
		}
	}, millrace.VersionGate{Store: b.store, Consumer: "totals"}.Middleware)
	router.AddConsumerHandler("totals", "totals", channel, func(msg *message.Message) error {
		err := apply(msg)
		if errors.Is(err, inbox.ErrNoTx) { // it is past the gate
			return nil
		}
		return err
	})
	rig.Run(b, router)
	return channel, tries
}

// passes waits for a try that succeeds.
func (b *bed) passes(tries <-chan error) {
	b.Helper()
	for rig.Within(b, tries, "the gate lets it through") != nil {
	}
}

func (b *bed) totalsAt(aggregate string) int64 {
	b.Helper()
	version, err := b.store.Version(context.WithoutCancel(b.Context()), inbox.Aggregate{Consumer: "totals", ID: aggregate})
	require.NoError(b, err)
	return version
}

// publisher is a router with a handler that publishes.
type publisher struct {
	*bed
	feed *rig.Feed
}

func (b *bed) publishing(i millrace.Inbox, h message.NoPublishHandlerFunc) *publisher {
	b.Helper()
	p := &publisher{b, rig.NewFeed()}
	router := rig.NewRouter(b)
	router.AddPlugin(b.store.Plugin())
	router.AddMiddleware(i.Middleware)
	router.AddConsumerHandler(consumer, "changes", p.feed, h)
	rig.Run(b, router)
	return p
}

func (p *publisher) deliver(msg *message.Message) (acked bool) {
	p.Helper()
	p.feed.Send(p, msg)
	return rig.Answer(p, msg)
}

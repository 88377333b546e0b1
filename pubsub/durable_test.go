package pubsub_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestDurableBoundsWhatItMakesRoomFor: a limit that is none would panic at Subscribe, and a statement takes so many arguments.
func TestDurableBoundsWhatItMakesRoomFor(t *testing.T) {
	t.Parallel()
	_, err := pubsub.Durable{Consumer: "billing", Concurrency: math.MaxInt, Prefetch: 10_001}.Decorate(rig.NewFeed())
	require.ErrorContains(t, err, "Concurrency 9223372036854775807 is above 10000")
	require.ErrorContains(t, err, "Prefetch 10001 is above 10000")
}

// held is a value in a context.
type held struct{ _ [64]byte }

// TestASubscriptionThatEndedIsForgotten: what its context holds is free while the subscriber is open.
func TestASubscriptionThatEndedIsForgotten(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(feed *rig.Feed, cancel func()){
		"by its context":    func(_ *rig.Feed, cancel func()) { cancel() },
		"by its subscriber": func(feed *rig.Feed, _ func()) { _ = feed.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := rig.NewStore(t, testdb.On(t, "sqlite").DB, inbox.Config{WithoutPlugin: true})
			feed := rig.NewFeed()
			sub, err := pubsub.Durable{Store: store, Consumer: "billing"}.Decorate(feed)
			require.NoError(t, err)
			once := func() weak.Pointer[held] {
				value := &held{}
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), held{}, value))
				defer cancel()
				messages, err := sub.Subscribe(ctx, "orders")
				require.NoError(t, err)
				end(feed, cancel)
				for range messages { // until it is closed
				}
				return weak.Make(value)
			}
			value := once()
			rig.Eventually(t, "the context is free", func() bool { runtime.GC(); return value.Value() == nil })
			require.NoError(t, sub.Close())
		})
	}
}

// TestAConsumerHasOneTopicAtATime: two handlers would get each other's stored messages.
func TestAConsumerHasOneTopicAtATime(t *testing.T) {
	t.Parallel()
	store := rig.NewStore(t, testdb.On(t, "sqlite").DB, inbox.Config{WithoutPlugin: true})
	durable := pubsub.Durable{Store: store, Consumer: "accounts"}
	decorate := func(d pubsub.Durable) message.Subscriber {
		sub, err := d.Decorate(rig.NewFeed())
		require.NoError(t, err)
		return sub
	}
	sub, again, mails := decorate(durable), decorate(durable), durable
	mails.Consumer = "mail"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var open []<-chan *message.Message
	for range 2 {
		messages, err := sub.Subscribe(ctx, "payments")
		require.NoError(t, err)
		open = append(open, messages)
	}
	for who, sub := range map[string]message.Subscriber{"the same": sub, "another": again} {
		_, err := sub.Subscribe(t.Context(), "signups")
		require.EqualError(t, err, `pubsub.Durable: subscribe consumer "accounts" to topic "signups": its stored messages go to a handler of topic `+
			`"payments" here: give each handler a Durable with a Consumer of its own`, who)
	}
	_, err := decorate(mails).Subscribe(t.Context(), "signups")
	require.NoError(t, err)
	cancel()
	for _, messages := range open {
		for range messages { // until it is closed
		}
	}
	_, err = again.Subscribe(t.Context(), "signups")
	require.NoError(t, err, "the handler of the other topic is gone")
}

package pubsub_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestDurableBoundsWhatItMakesRoomFor: a limit that is none would panic at Subscribe.
func TestDurableBoundsWhatItMakesRoomFor(t *testing.T) {
	t.Parallel()
	_, err := pubsub.Durable{Consumer: "billing", Concurrency: math.MaxInt, Prefetch: 1_000_001}.Decorate(rig.NewFeed())
	require.ErrorContains(t, err, "Concurrency 9223372036854775807 is above 1000000")
	require.ErrorContains(t, err, "Prefetch 1000001 is above 1000000")
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

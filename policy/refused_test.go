package policy_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

// behind is a queue of the consumer that parks at the first failure.
func behind(store *inbox.Store, consumer string) pubsub.Durable {
	return pubsub.Durable{
		Store: store, Consumer: consumer, Mode: pubsub.StoreFirst, MaxAttempts: 1, Poll: 10 * time.Millisecond, MinBackoff: time.Minute,
	}
}

// No message of a handler that the policy refuses is to blame.
func TestARefusedMessageIsNoAttempt(t *testing.T) {
	store, router, feed := newStore(t), newRouter(t), rig.NewFeed()
	_, err := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"billing": {}}}.
		Wire(router, policy.Wiring{Store: store, Absent: []string{"billing"}})
	require.NoError(t, err)
	run(t, router)
	sub, err := behind(store, "unknown").Decorate(feed)
	require.NoError(t, err)
	router.AddConsumerHandler("unknown", "orders", sub, done)
	require.NoError(t, router.RunHandlers(context.WithoutCancel(t.Context())))
	msg := message.NewMessage("1", nil)
	feed.Send(t, msg)
	require.True(t, rig.Answer(t, msg))
	var kept []admin.Message
	rig.Eventually(t, "it is put back", func() bool {
		kept, err = admin.New(store).Find(context.WithoutCancel(t.Context()), admin.Filter{}, 0, 1)
		require.NoError(t, err)
		return len(kept) == 1 && kept[0].LastError != ""
	})
	require.Contains(t, kept[0].LastError, `handler "unknown" is not named`)
	require.Equal(t, admin.FailedRetryable, kept[0].Status)
	require.Zero(t, kept[0].Attempts)
}

// A stored message that a router's decorator delivers does not tell the name of its handler. The next one does.
func TestAMessageWithoutAHandlersNameDecidesNothing(t *testing.T) {
	store, router, feed := newStore(t), newRouter(t), rig.NewFeed()
	durable := behind(store, "billing")
	durable.Mode, durable.MinBackoff = pubsub.StoreOnFailure, time.Millisecond
	queue := rig.Queue(t, store, inbox.QueueConfig{Consumer: "billing"})
	require.NoError(t, queue.Put(t.Context(), "orders", message.NewMessage("stored", nil)))
	refused := make(chan error, 1)
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err != nil {
				select {
				case refused <- err:
				default:
				}
			}
			return produced, err
		}
	})
	_, err := policy.Policy{}.Wire(router, policy.Wiring{Store: store})
	require.NoError(t, err)
	router.AddSubscriberDecorators(durable.Decorate)
	handled := make(chan string, 10)
	router.AddConsumerHandler("billing", "orders", feed, func(msg *message.Message) error { handled <- msg.UUID; return nil })
	run(t, router)
	require.EqualError(t, rig.Within(t, refused, "it is refused"), "policy: "+nameless)
	msg := message.NewMessage("straight", nil)
	feed.Send(t, msg)
	require.True(t, rig.Answer(t, msg))
	require.Equal(t, "straight", rig.Within(t, handled, "it is handled"))
	require.Equal(t, "stored", rig.Within(t, handled, "the stored one is tried again"))
}

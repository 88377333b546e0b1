package tests_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmcqrs "github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

type book struct{ Order string }

// Watermill's command processor hides an error before any middleware sees it, so what the
// failed handler did is committed: docs/pitfalls.md says that nothing can be done about it.
func TestAckCommandHandlingErrorsHidesFailures(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		for ack, want := range map[bool]int{true: 1, false: 0} {
			b := newBed(t, db)
			router, feed := b.router(millrace.Inbox{Store: b.store}.Middleware), rig.NewFeed()
			marshaler := wmcqrs.JSONMarshaler{}
			processor, err := wmcqrs.NewCommandProcessorWithConfig(router, wmcqrs.CommandProcessorConfig{
				GenerateSubscribeTopic: func(wmcqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
				SubscriberConstructor: func(wmcqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return feed, nil
				},
				Marshaler: marshaler, AckCommandHandlingErrors: ack, Logger: watermill.NopLogger{},
			})
			require.NoError(t, err)
			_, err = processor.AddHandler(wmcqrs.NewCommandHandler("billing", func(ctx context.Context, c *book) error {
				if err := apply(ctx, c.Order); err != nil {
					return err
				}
				return errBoom // after half of the work
			}))
			require.NoError(t, err)
			s := &service{bed: b, feed: feed}
			s.run(router)
			msg, err := marshaler.Marshal(&book{"order-1"})
			require.NoError(t, err)
			assert.Equal(t, ack, s.deliver(msg))
			assert.Equal(t, want, b.effects())
			b.exec(`DROP TABLE effects`)
			require.NoError(t, router.Close())
		}
	})
}

// A message that was acked before its handler failed is nobody's any more: nothing is open,
// and the broker has its ack.
func TestInstantAckInsideLosesFailures(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(errBoom, apply(context.WithoutCancel(msg.Context()), msg.UUID))
		}, millrace.Inbox{Store: b.store}.Middleware, middleware.InstantAck)
		assert.True(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		assert.Zero(t, b.effects())
		b.nothingOpen()
	}))
}

// The time at which a message was made is the id of all that were made then, and another one when it is sent again.
func TestATimeAsTheKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		made := func(at, payload string) *message.Message {
			msg := newMessage(payload)
			msg.Metadata.Set("made_at", at)
			return msg
		}
		const first, later = "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z"
		byTime := func(i *millrace.Inbox) { i.Key = inbox.ByMetadata("made_at") }
		must(t, b.inbox(effect, byTime), made(first, "one"))
		must(t, b.inbox(effect, byTime), made(first, "two"))
		assert.Equal(t, 1, b.effects(), "the second one is dropped")
		assert.Equal(t, 1, b.events.Count("collision"), "and counted")
		must(t, b.inbox(effect, byTime, func(i *millrace.Inbox) { i.OnCollision = inbox.CollisionPark }), made(first, "three"))
		assert.Len(t, rig.Parked(t, b.store), 1, "the third one is kept")
		must(t, b.inbox(effect, byTime), made(later, "one"))
		assert.Equal(t, 2, b.effects(), "what is sent again is another message")
	}))
}

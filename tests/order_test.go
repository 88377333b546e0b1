package tests_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmcqrs "github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	box "github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// orderBodies: Watermill's own middlewares, where they belong and where they do not.
var orderBodies = []testdb.Body{
	{Name: "Retry outside", Why: "each try has a transaction of its own", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(failing(2), retry, b.patient().Middleware)
		assert.True(t, s.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "Retry inside", Why: "a second run in the transaction of a failed one is refused", Run: hidden(halfDone, retry)},
	{Name: "Retry and Recoverer inside", Why: "a panic that became an error is a failed run too", Run: hidden(crash, retry, middleware.Recoverer)},
	{Name: "PoisonQueue inside", Why: "it makes a failure look like a success: half of the work would be committed",
		Run: hidden(halfDone, poisonQueue(&rig.Publisher{}))},
	{Name: "IgnoreErrors inside", Why: "as PoisonQueue inside", Run: hidden(halfDone, middleware.NewIgnoreErrors([]error{errBoom}).Middleware)},
	{Name: "Duplicator inside", Why: "two effects for one message are refused", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		got := make(chan error, 1)
		s := b.newService(effect, tells(got), b.patient().Middleware, middleware.Duplicator)
		assert.False(t, s.deliver(newMessage("x")))
		err := <-got
		require.ErrorIs(t, err, inbox.ErrSwallowed)
		require.ErrorContains(t, err, "it ran the handler again")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "a middleware that does not wait for the handler", Why: "what the handler has yet to do is not acked", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		got, entered, goOn := make(chan error, 1), make(chan struct{}), make(chan struct{})
		var ended <-chan error
		hasty := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				ended = rig.Handle(h, msg)
				<-entered
				return nil, nil
			}
		}
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			<-goOn
			return effect(msg)
		}, tells(got), b.patient().Middleware, hasty)
		assert.False(t, s.deliver(newMessage("x")))
		err := <-got
		require.ErrorIs(t, err, inbox.ErrSwallowed)
		require.ErrorContains(t, err, "it returned before the handler did")
		close(goOn)
		require.Error(t, rig.Within(t, ended, "the handler returns"))
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "a context that is published", Why: "the next handler has no part in the transaction that it carries", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		channel := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
		defer func() { assert.NoError(t, channel.Close()) }()
		second := rig.NewRouter(b)
		second.AddPlugin(b.store.Plugin())
		mailed := make(chan struct{})
		second.AddConsumerHandler("mails", "mails", channel, func(*message.Message) error { close(mailed); return nil })
		rig.Run(b, second)
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			mail := message.NewMessageWithContext(msg.Context(), "mail", nil)
			if err := channel.Publish("mails", mail); err != nil {
				return nil, err
			}
			rig.Within(t, mailed, "the mail is handled")
			return effect(msg)
		}, b.patient().Middleware)
		assert.True(t, s.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "PoisonQueue outside", Why: "the failed run is rolled back, then the message is put away", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		queue := &rig.Publisher{}
		s := b.newService(failing(1), poisonQueue(queue), b.patient().Middleware)
		msg := newMessage("x")
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 0, b.effects())
		assert.Len(t, queue.Messages(), 1)
		assert.True(t, s.deliver(queue.Messages()[0]), "put back by an operator, it is handled: T12")
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "InstantAck outside", Why: "a configuration error before anything else", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		got := make(chan error, 1)
		s := b.newService(invoice, tells(got), middleware.InstantAck, b.patient().Middleware)
		assert.True(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		require.ErrorContains(t, <-got, "InstantAck")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "InstantAck inside", Why: "the ack says nothing about the outcome, which stays listed", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage("out")}, apply(context.WithoutCancel(msg.Context()), msg.UUID)
		}, b.patient().Middleware, middleware.InstantAck)
		s.published.FailWith(errBoom)
		assert.True(t, s.deliver(newMessage("x")))
		require.NoError(t, s.router.Close())
		require.NoError(t, b.store.Close(t.Context()))
		assert.Equal(t, 1, b.count(`SELECT COUNT(*) FROM millrace_outcomes`), "settled by an ack that came first")
		assert.Contains(t, strings.Join(b.events.Logs(), "\n"), "acked before its effects were committed")
	})},
	{Name: "a handler that nacks its message", Why: "it is redelivered, so its run must not count", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		got, nacks := make(chan error, 1), true
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			if nacks {
				msg.Nack()
			}
			return invoice(msg)
		}, tells(got), b.patient().Middleware)
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)))
		err := rig.Within(t, got, "the handler returns")
		require.ErrorContains(t, err, "nacked while its handler ran")
		assert.Equal(t, 0, b.effects())
		assert.NotContains(t, strings.Join(b.events.Logs(), "\n"), "acked before its effects were committed")
		nacks = false
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
		assert.Len(t, s.published.Messages(), 1, "of the second run")
	})},
	{Name: "Retry around a handler that nacks its message", Why: "the second try says what is wrong", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		got := make(chan error, 1)
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			msg.Nack()
			return invoice(msg)
		}, tells(got), middleware.Retry{MaxRetries: 1, InitialInterval: 1}.Middleware, b.patient().Middleware)
		assert.False(t, s.deliver(newMessage("x")))
		err := rig.Within(t, got, "the handler returns")
		require.ErrorContains(t, err, "nacked before the inbox saw it")
		assert.NotContains(t, err.Error(), "InstantAck")
		assert.Equal(t, 0, b.effects())
	})},
	{Name: "Timeout inside", Why: "T16: it leaves a cancelled context behind", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, middleware.Retry{MaxRetries: 1, InitialInterval: 1}.Middleware,
			b.patient().Middleware, middleware.Timeout(time.Minute))
		assert.True(t, s.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
		assert.Len(t, s.published.Messages(), 1)
	})},
	{Name: "Retry and Timeout outside", Why: "Timeout leaves an ended context behind, so Retry needs ResetContextOnRetry", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, reset := range []bool{false, true} {
			s := b.newService(failing(1), middleware.Retry{MaxRetries: 1, InitialInterval: 1, ResetContextOnRetry: reset}.Middleware,
				middleware.Timeout(time.Minute), b.patient().Middleware)
			assert.Equal(t, reset, s.deliver(newMessage("x")))
			require.NoError(t, s.router.Close())
		}
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "Recoverer and CorrelationID inside", Why: "a panic becomes an error and is rolled back; produced messages are stamped", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		crashes := true
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			out, err := invoice(msg)
			if crashes {
				panic("boom")
			}
			return out, err
		}, b.patient().Middleware, middleware.CorrelationID, middleware.Recoverer)
		msg := newMessage("x")
		middleware.SetCorrelationID("c-1", msg)
		assert.False(t, s.deliver(again(msg)))
		assert.Equal(t, 0, b.effects())
		crashes = false
		s.published.FailWith(errBoom)
		assert.False(t, s.deliver(again(msg)))
		s.published.FailWith(nil)
		assert.True(t, s.deliver(again(msg)))
		require.Len(t, s.published.Messages(), 1)
		assert.Equal(t, "c-1", middleware.MessageCorrelationID(s.published.Messages()[0]))
	})},
	{Name: "Duplicator outside", Why: "Watermill's own chaos: every message twice", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(invoice, middleware.Duplicator, b.patient().Middleware)
		for range 10 {
			assert.True(t, s.deliver(newMessage("x")))
		}
		assert.Equal(t, 10, b.effects())
	})},
}

// failing has its effect each time, and fails the first n times.
func failing(n int) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := effect(msg)
		if n > 0 {
			n--
			return nil, errors.Join(errBoom, err)
		}
		return nil, err
	}
}

// atFirst does first with the first delivery, and has an effect with those that follow.
func atFirst(first message.HandlerFunc) message.HandlerFunc {
	ran := false
	return func(msg *message.Message) ([]*message.Message, error) {
		if !ran {
			ran = true
			return first(msg)
		}
		return effect(msg)
	}
}

// crash has an effect and panics, and halfDone has one and fails.
func crash(msg *message.Message) ([]*message.Message, error) {
	_, _ = effect(msg)
	panic("boom")
}

func halfDone(msg *message.Message) ([]*message.Message, error) {
	return nil, errors.Join(errBoom, apply(msg.Context(), msg.UUID))
}

// hidden has middlewares inside of the inbox hide how the first run of a handler ended.
func hidden(first message.HandlerFunc, inside ...message.HandlerMiddleware) func(*testing.T, *testdb.DB) {
	return testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(atFirst(first), append([]message.HandlerMiddleware{b.patient().Middleware}, inside...)...)
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)))
		assert.Equal(t, 0, b.effects(), "a failed run was committed")
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
	})
}

var retry = middleware.Retry{MaxRetries: 3, InitialInterval: 1}.Middleware

func poisonQueue(queue *rig.Publisher) message.HandlerMiddleware {
	poison, err := middleware.PoisonQueue(queue, "poison")
	if err != nil {
		panic(err)
	}
	return poison
}

type book struct{ Order string }

// Watermill's command processor and its requestreply hide an error before any middleware sees it, so what the
// failed handler did is committed: docs/pitfalls.md says that nothing can be done about it. A reply that the outbox
// stores is committed or rolled back with it.
func TestAckCommandHandlingErrorsHidesFailures(t *testing.T) {
	t.Parallel()
	half := func(ctx context.Context, c *book) error {
		return errors.Join(errBoom, apply(ctx, c.Order)) // after half of the work
	}
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		for _, hides := range []bool{true, false} {
			b := newBed(t, db)
			assert.Equal(t, hides, b.command(hides, wmcqrs.NewCommandHandler("billing", half)))
			assert.Equal(t, hides, b.effects() == 1)
			b.exec(`DROP TABLE effects`)

			b = newBed(t, db)
			backend := b.replies(requestreply.PubSubBackendConfig{AckCommandErrors: hides})
			assert.Equal(t, hides, b.command(false, requestreply.NewCommandHandler("billing", backend, half)))
			assert.Equal(t, hides, b.effects() == 1)
			assert.Equal(t, hides, b.count(`SELECT COUNT(*) FROM millrace_outbox`) == 1, "the reply")
			b.exec(`DROP TABLE effects`)
			b.exec(`DELETE FROM millrace_outbox`)
		}
	})
}

// A command that the outbox stores is sent after the commit, so nobody replies before that.
func TestAReplyThatAHandlerWaitsFor(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		backend := b.replies(requestreply.PubSubBackendConfig{})
		bus, err := wmcqrs.NewCommandBusWithConfig(rig.NewOutbox(t, b.db.DB, box.Config{}), wmcqrs.CommandBusConfig{
			GeneratePublishTopic: func(wmcqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
			Marshaler:            wmcqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		got := make(chan error, 1)
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			reply, err := requestreply.SendWithReply(msg.Context(), bus, backend, &book{"order-1"})
			if err == nil {
				err = reply.Error
			}
			got <- err
			return nil, err
		}, millrace.Inbox{Store: b.store, Timeout: 10 * time.Second, Options: inbox.Options{TwinWait: rig.Patience}}.Middleware) // in which a busy machine sends the command
		assert.False(t, s.deliver(newMessage("x")))
		require.ErrorContains(t, rig.Within(t, got, "the handler did not run"), context.DeadlineExceeded.Error())
		assert.Zero(t, b.count(`SELECT COUNT(*) FROM millrace_outbox`))
	}))
}

// replies is a backend of requestreply whose replies the outbox stores.
func (b *bed) replies(config requestreply.PubSubBackendConfig) requestreply.Backend[struct{}] {
	b.Helper()
	config.Publisher = rig.NewOutbox(b, b.db.DB, box.Config{})
	config.SubscriberConstructor = func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) { return rig.NewFeed(), nil }
	config.GeneratePublishTopic = func(requestreply.PubSubBackendPublishParams) (string, error) { return "replies", nil }
	config.GenerateSubscribeTopic = func(requestreply.PubSubBackendSubscribeParams) (string, error) { return "replies", nil }
	backend, err := requestreply.NewPubSubBackend(config, requestreply.BackendPubsubJSONMarshaler[struct{}]{})
	require.NoError(b, err)
	return backend
}

// command delivers one to a handler, and reports whether it was acked.
func (b *bed) command(ackErrors bool, handler wmcqrs.CommandHandler) (acked bool) {
	b.Helper()
	router, feed, marshaler := b.router(b.patient().Middleware), rig.NewFeed(), wmcqrs.JSONMarshaler{}
	processor, err := wmcqrs.NewCommandProcessorWithConfig(router, wmcqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(wmcqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
		SubscriberConstructor: func(wmcqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return feed, nil
		},
		Marshaler: marshaler, AckCommandHandlingErrors: ackErrors, Logger: watermill.NopLogger{},
	})
	require.NoError(b, err)
	_, err = processor.AddHandler(handler)
	require.NoError(b, err)
	s := &service{bed: b, feed: feed}
	s.run(router)
	msg, err := marshaler.Marshal(&book{"order-1"})
	require.NoError(b, err)
	msg.Metadata.Set(requestreply.OperationIDMetadataKey, "operation-1")
	acked = s.deliver(msg)
	require.NoError(b, router.Close())
	return acked
}

// A message that was acked before its handler failed is nobody's any more: nothing is open,
// and the broker has its ack.
func TestInstantAckInsideLosesFailures(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.newService(func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(errBoom, apply(context.WithoutCancel(msg.Context()), msg.UUID))
		}, b.patient().Middleware, middleware.InstantAck)
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

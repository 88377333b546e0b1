package tests_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// bare starts a router without the plugin, whose handler fails once.
func (b *bed) bare(configure func(r *message.Router)) *service {
	b.Helper()
	router := rig.NewRouter(b)
	configure(router)
	return b.serve(router, failing(1))
}

// tells sends to what runs returned.
func tells(to chan<- error) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := next(msg)
			to <- err
			return out, err
		}
	}
}

// logged counts the lines that begin with a text.
func (b *bed) logged(text string) (n int) {
	for _, line := range b.events.Logs() {
		if strings.HasPrefix(line, text) {
			n++
		}
	}
	return n
}

const noPlugin = "inbox: the router of this consumer has no plugin, so its messages are refused; said once"

// pluginBodies: what becomes of the messages of a router that does not have the plugin.
var pluginBodies = []testdb.Body{
	{Name: "Retry inside without the plugin", Why: "the message is refused, since nobody would notice its two runs", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		s := b.bare(func(r *message.Router) {
			r.AddMiddleware(b.patient().Middleware, retry)
		})
		msg := newMessage("x")
		for range 2 {
			assert.False(t, s.deliver(again(msg)))
		}
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, 1, b.logged(noPlugin))
	})},
	{Name: "the refusal", Why: "it names the fix, and is paced", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		const n = 3
		refused := make(chan error, n)
		s := b.bare(func(r *message.Router) { r.AddMiddleware(tells(refused), b.patient().Middleware) })
		began := time.Now()
		for range n {
			require.False(t, s.deliver(newMessage("x")))
		}
		assert.GreaterOrEqual(t, time.Since(began), 800*time.Millisecond, "125, 250 and 500 ms at least")
		require.NoError(t, s.router.Close())
		require.Len(t, refused, n)
		for range n {
			err := <-refused
			require.ErrorIs(t, err, inbox.ErrNoPlugin)
			require.ErrorContains(t, err, "router.AddPlugin(store.Plugin())")
			require.ErrorContains(t, err, "billing")
		}
	})},
	{Name: "a refused message in Durable", Why: "it goes back to its source", Run: refusedInDurable(pubsub.StoreOnFailure)},
	{Name: "a refused message that is stored first", Why: "it waits and costs no attempt, though it does not know its handler", Run: refusedInDurable(pubsub.StoreFirst)},
	{Name: "WithoutPlugin", Why: "it lets such a router use the store", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		b.store = b.newStore(b.db.DB, inbox.Config{WithoutPlugin: true})
		s := b.bare(func(r *message.Router) { r.AddMiddleware(b.patient().Middleware) })
		msg := newMessage("x")
		assert.False(t, s.deliver(again(msg)), "the first run fails")
		assert.True(t, s.deliver(again(msg)))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "Store.Run beside a router without the plugin", Why: "it is no guard", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		stop := rig.Work(t, b.store)
		s := b.bare(func(r *message.Router) { r.AddMiddleware(b.patient().Middleware) })
		assert.False(t, s.deliver(newMessage("x")))
		assert.False(t, s.deliver(newMessage("x")))
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, 1, b.logged(noPlugin))
		stop()
	})},
	{Name: "a gate alone", Why: "it needs the plugin like an inbox", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		gate := millrace.VersionGate{Store: b.store, Optional: true}.Middleware
		s := b.bare(func(r *message.Router) { r.AddMiddleware(gate) })
		assert.False(t, s.deliver(newMessage("x")))
		assert.Equal(t, 1, b.logged(noPlugin))
		attended := b.newService(effect, gate)
		assert.True(t, attended.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "two routers with one store", Why: "the plugin of one does not vouch for the other, not even for handlers of one name", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		attended := b.newService(effect, b.patient().Middleware)
		s := b.bare(func(r *message.Router) { r.AddMiddleware(b.patient().Middleware) })
		msg := newMessage("x")
		for range 2 { // the second run of its handler would succeed
			assert.False(t, s.deliver(again(msg)))
		}
		assert.Equal(t, 1, b.logged(noPlugin))
		assert.True(t, attended.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
	})},
	{Name: "a plugin inside the queue", Why: "a stored message does not pass it, and its router has it all the same", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for _, mode := range []pubsub.Mode{pubsub.StoreOnFailure, pubsub.StoreFirst} {
			for _, inside := range []bool{true, false} {
				b.store = b.newStore(b.db.DB, inbox.Config{})
				durable := pubsub.Durable{Store: b.store, Consumer: "billing", Mode: mode, MinBackoff: 1, MaxBackoff: 1, Poll: 20 * time.Millisecond}
				decorate := func(r *message.Router) error {
					r.AddSubscriberDecorators(durable.Decorate)
					return nil
				}
				plugins := []message.RouterPlugin{b.store.Plugin(), decorate}
				if inside {
					slices.Reverse(plugins)
				}
				s := b.bare(func(r *message.Router) {
					r.AddPlugin(plugins...)
					r.AddMiddleware(millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware)
				})
				msg := newMessage("x")
				assert.True(t, s.deliver(msg))
				assert.Eventually(t, func() bool { return b.effectsOf(msg.UUID) == 1 }, rig.Patience, time.Millisecond)
				assert.Zero(t, b.logged(noPlugin))
				require.NoError(t, s.router.Close())
			}
		}
	})},
	{Name: "a refused message whose router closes, and one whose store does", Why: "the pause holds up neither", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		for name, end := range map[string]func(*service) error{
			"router": func(s *service) error { return s.router.Close() },
			"store":  func(*service) error { return b.store.Close(context.WithoutCancel(t.Context())) },
		} {
			rig.Eventually(b, name+": its end waits for no pause", func() bool {
				b.store = b.newStore(b.db.DB, inbox.Config{})
				entered := make(chan struct{}, 100)
				s := b.bare(func(r *message.Router) {
					r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
						return func(msg *message.Message) ([]*message.Message, error) {
							entered <- struct{}{}
							return next(msg)
						}
					}, b.patient().Middleware)
				})
				msgs := make([]*message.Message, 6) // the pause of the last is 2.5 seconds at least
				for i := range msgs {
					msgs[i] = newMessage("x")
					s.feed.Send(t, msgs[i])
					<-entered
				}
				began := time.Now()
				require.NoError(t, end(s), name)
				for _, msg := range msgs {
					assert.False(t, rig.Answer(t, msg), name)
				}
				return time.Since(began) < 2*time.Second // a busy machine has more tries
			})
		}
	})},
	{Name: "a handler that is added while the router runs", Why: "it is attended as well", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		late := b.addedLate(b.newService(effect, b.patient().Middleware))
		assert.True(t, late.deliver(newMessage("x")))
		assert.Equal(t, 1, b.effects())
		assert.Zero(t, b.logged(unguarded))
	})},
	{Name: "an inbox that is added while the router runs", Why: "the guard stands outside of it, which is said once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		late := b.addedLate(b.newService(effect), b.patient().Middleware)
		assert.True(t, late.deliver(newMessage("x")))
		assert.True(t, late.deliver(newMessage("x")))
		assert.Equal(t, 2, b.effects())
		assert.Equal(t, 1, b.logged(unguarded))
	})},
	{Name: "a middleware that is added while the router runs", Why: "the guard stands outside of it, which is said once", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		late := b.addedLate(b.newService(effect, b.patient().Middleware), retry)
		assert.True(t, late.deliver(newMessage("x")))
		assert.True(t, late.deliver(newMessage("x")))
		assert.Equal(t, 1, b.logged(unguarded))
	})},
}

const unguarded = "inbox: a Retry inside the inbox would not be noticed; said once per consumer"

// addedLate adds a handler to a router that runs.
func (b *bed) addedLate(s *service, middlewares ...message.HandlerMiddleware) *service {
	b.Helper()
	late := &service{bed: b, feed: rig.NewFeed()}
	s.router.AddConsumerHandler("late", "orders", late.feed, func(msg *message.Message) error {
		return apply(msg.Context(), msg.UUID)
	}).AddMiddleware(middlewares...)
	require.NoError(b, s.router.RunHandlers(context.WithoutCancel(b.Context())))
	return late
}

func refusedInDurable(mode pubsub.Mode) func(*testing.T, *testdb.DB) {
	return func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		durable := pubsub.Durable{
			Store: b.store, Consumer: "billing", Mode: mode, MaxAttempts: 2, MinBackoff: 1, MaxBackoff: 1, Poll: 20 * time.Millisecond,
		}
		refused := make(chan error, 100)
		s := b.bare(func(r *message.Router) {
			r.AddSubscriberDecorators(durable.Decorate)
			r.AddMiddleware(tells(refused), millrace.Inbox{Store: b.store, Consumer: "billing"}.Middleware)
		})
		stored := 0
		if mode == pubsub.StoreFirst {
			stored = 1
		}
		for n := range 3 {
			if n == 0 || stored == 0 {
				assert.Equal(t, stored == 1, s.deliver(newMessage("x")))
			}
			require.ErrorIs(t, <-refused, inbox.ErrNoPlugin)
		}
		require.NoError(t, s.router.Close())
		assert.Equal(t, 0, b.effects())
		assert.Equal(t, stored, b.count(`SELECT COUNT(*) FROM millrace_messages WHERE attempts = 0`))
	}
}

package policy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// run starts a router and stops it when the test is over.
func run(t testing.TB, router *message.Router) {
	t.Helper()
	ended := rig.Run(t, router)
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
}

func done(*message.Message) error { return nil }

func TestRunRefusesWhatDoesNotFitTheRouter(t *testing.T) {
	queue := func(why string) string {
		return `consumers.billing: handler "billing" needs a queue (` + why + `): ` +
			`give the router the subscriber that wired.Subscriber("billing", subscriber) returns`
	}
	for name, c := range map[string]struct {
		policy   policy.Policy
		handlers []string
		want     string
	}{
		"a handler that does not exist": {
			consumers(map[string]policy.Rules{"biling": {}, "audit": {}, "later": {}}), []string{"billing", "audit"},
			"consumers.biling: the router has no such handler: if it is added later, or to another router, " +
				"name it in Wiring.Absent; the router has audit, billing: did you mean billing?",
		},
		"no handlers": {
			consumers(map[string]policy.Rules{"billing": {}}), nil,
			"consumers.billing: the router has no such handler: if it is added later, or to another router, " +
				"name it in Wiring.Absent; the router has none",
		},
		"a handler that is not named": {
			policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"later": {}}}, []string{"billing", "audit"},
			`strict: handler "audit" is not named: name it in consumers, or take strict out` + "\n" +
				`strict: handler "billing" is not named: name it in consumers, or take strict out`,
		},
		"durable":   {consumers(map[string]policy.Rules{"billing": {Strategy: policy.Durable}}), []string{"billing"}, queue("strategy: durable")},
		"defaults":  {policy.Policy{Defaults: policy.Rules{Strategy: policy.Durable}}, []string{"billing"}, strings.Replace(queue("strategy: durable"), "consumers.billing", "defaults", 1)},
		"gate":      {consumers(map[string]policy.Rules{"billing": {Strategy: policy.Gate}}), []string{"billing"}, queue("strategy: gate with on_gap: hold")},
		"stored":    {consumers(map[string]policy.Rules{"billing": {Ack: policy.AckStored}}), []string{"billing"}, queue("ack: stored")},
		"order key": {consumers(map[string]policy.Rules{"billing": {Ack: policy.AckStored, OrderKey: "metadata:account"}}), []string{"billing"}, queue("ack: stored")},
	} {
		t.Run(name, func(t *testing.T) {
			router, feed := newRouter(t), rig.NewFeed()
			for _, handler := range c.handlers {
				router.AddConsumerHandler(handler, "orders", feed, done)
			}
			_, err := c.policy.Wire(router, policy.Wiring{Store: newStore(t), Absent: []string{"later"}})
			require.NoError(t, err)
			require.EqualError(t, startError(t, router), c.want)
		})
	}
}

// startError is what keeps the router from starting.
func startError(t testing.TB, router *message.Router) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience) // one that starts must end, too
	defer cancel()
	err := router.Run(ctx)
	require.ErrorContains(t, err, "cannot initialize plugin")
	for range 2 { // what Watermill puts around it
		require.Error(t, err)
		err = errors.Unwrap(err)
	}
	return err
}

func TestRunRefusesAnotherKey(t *testing.T) {
	store := newStore(t)
	feed := rig.NewFeed()
	start := func(key string) *message.Router {
		router := newRouter(t)
		router.AddConsumerHandler("billing", "orders", feed, func(msg *message.Message) error {
			_, err := inbox.Tx(msg.Context())
			return err
		})
		p := consumers(map[string]policy.Rules{"billing": {Key: policy.Key{From: key}}})
		_, err := p.Wire(router, policy.Wiring{Store: store})
		require.NoError(t, err)
		return router
	}
	router := start("uuid")
	run(t, router)
	msg := message.NewMessage("1", nil)
	feed.Send(t, msg)
	require.True(t, rig.Answer(t, msg))
	require.EqualError(t, startError(t, start("payload")),
		`consumers.billing: inbox: consumer "billing": the consumer's key changed from uuid to payload, `+
			"and epoch 0 knows messages by the old one: put the old key back, or set Epoch to 1, and FormerKey to the old key: "+
			"without FormerKey, what comes again is handled again")
}

// A handler that is added later is compared with the policy at its first message.
func TestHandlersThatAreAddedLater(t *testing.T) {
	router := newRouter(t)
	router.AddConsumerHandler("first", "orders", rig.NewFeed(), done)
	errs := make(chan error, 1)
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			errs <- err
			return produced, err
		}
	})
	p := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{
		"first": {}, "unwrapped": {Strategy: policy.Durable}, "wrapped": {Strategy: policy.Durable}, "plain": {},
	}}
	wired, err := p.Wire(router, policy.Wiring{Store: newStore(t), Absent: []string{"unwrapped", "wrapped", "plain"}})
	require.NoError(t, err)
	run(t, router)

	for handler, want := range map[string]string{
		"plain": "", "wrapped": "",
		"unwrapped": `policy: consumers.unwrapped: handler "unwrapped" needs a queue (strategy: durable): ` +
			`give the router the subscriber that wired.Subscriber("unwrapped", subscriber) returns`,
		"unknown": `policy: strict: handler "unknown" is not named: name it in consumers, or take strict out`,
		"":        "policy: " + nameless,
	} {
		feed := rig.NewFeed()
		var sub message.Subscriber = feed
		if handler == "wrapped" {
			sub, err = wired.Subscriber(handler, sub)
			require.NoError(t, err)
		}
		ran := 0
		router.AddConsumerHandler(handler, "orders", sub, func(msg *message.Message) error {
			ran++
			_, err := inbox.Tx(msg.Context())
			return err
		})
		require.NoError(t, router.RunHandlers(context.WithoutCancel(t.Context())))
		for range 2 {
			began := time.Now()
			feed.Send(t, message.NewMessage(watermill.NewUUID(), nil))
			err := <-errs
			if want == "" {
				require.NoError(t, err, handler)
				continue
			}
			require.EqualError(t, err, want)
			require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond, "its source may redeliver it at once")
			require.Zero(t, ran)
		}
	}
}

func TestAHandlerNeedsAName(t *testing.T) {
	router := newRouter(t)
	router.AddConsumerHandler("", "orders", rig.NewFeed(), done)
	_, err := policy.Policy{}.Wire(router, policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	require.EqualError(t, startError(t, router), nameless)
}

const nameless = "a handler has no name, and rules are by name: give it one, and have a Watermill router run it"

// Two guards around one handler are refused, not nested.
func TestTwoGuardsAreRefused(t *testing.T) {
	store := newStore(t)
	for name, second := range map[string]func(*message.Router) error{
		"another policy": func(router *message.Router) error {
			_, err := policy.Policy{}.Wire(router, policy.Wiring{Store: store})
			return err
		},
		"a middleware": func(router *message.Router) error {
			router.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			router, feed, errs := newRouter(t), rig.NewFeed(), make(chan error, 1)
			router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, err := next(msg)
					errs <- err
					return nil, err
				}
			})
			_, err := policy.Policy{}.Wire(router, policy.Wiring{Store: store})
			require.NoError(t, err)
			require.NoError(t, second(router))
			ran := false
			router.AddConsumerHandler("billing", "orders", feed, func(*message.Message) error { ran = true; return nil })
			run(t, router)
			feed.Send(t, message.NewMessage("1", nil))
			require.ErrorContains(t, <-errs, "middleware.Inbox stands twice")
			require.False(t, ran)
		})
	}
}

// The stores are checked when the router starts, and look after themselves then.
func TestRunChecksTheStores(t *testing.T) {
	for _, rules := range []policy.Rules{{}, {Store: "eu"}, {Strategy: policy.Dedup}, {Strategy: policy.Dedup, Store: "eu"}} {
		w := policy.Wiring{Store: newStore(t), Stores: map[string]*inbox.Store{}}
		if rules.Store == "" {
			w.Store = newStoreWithoutTables(t)
		} else {
			w.Stores[rules.Store] = newStoreWithoutTables(t)
		}
		router := newRouter(t)
		router.AddConsumerHandler("billing", "orders", rig.NewFeed(), done)
		_, err := consumers(map[string]policy.Rules{"billing": rules}).Wire(router, w)
		require.NoError(t, err)
		require.ErrorContains(t, startError(t, router), "run Store.Migrate")
	}
}

// A policy that was wired is not changed any more.
func TestAPolicyIsWiredAsItWas(t *testing.T) {
	p := consumers(map[string]policy.Rules{"billing": {}})
	wired, err := p.Wire(newRouter(t), policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	p.Consumers["billing"] = policy.Rules{Strategy: policy.Durable}
	feed := rig.NewFeed()
	sub, err := wired.Subscriber("billing", feed)
	require.NoError(t, err)
	require.Equal(t, message.Subscriber(feed), sub)
}

func TestDefaultsAreForWhoIsNotNamed(t *testing.T) {
	router, feed, ran := newRouter(t), rig.NewFeed(), 0
	_, err := policy.Policy{Defaults: policy.Rules{Key: byAccount}}.Wire(router, policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	router.AddConsumerHandler("billing", "orders", feed, func(msg *message.Message) error {
		ran++
		_, err := inbox.Tx(msg.Context())
		return err
	})
	run(t, router)
	for _, uuid := range []string{"1", "2"} {
		msg := of("ada", uuid)
		feed.Send(t, msg)
		require.True(t, rig.Answer(t, msg))
	}
	require.Equal(t, 1, ran)
}

package middleware_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/rig"
)

// wired is a router on a Store, with a feed for each of its handlers.
type wired struct {
	*message.Router
	feeds   map[string]*rig.Feed
	refused chan error
}

// wire starts a router of these handlers, all with the same effect.
func wire(t *testing.T, configure func(r *message.Router, handlers map[string]*message.Handler), names ...string) *wired {
	t.Helper()
	w := &wired{Router: rig.NewRouter(t), feeds: map[string]*rig.Feed{}, refused: make(chan error, 10)}
	w.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err != nil {
				w.refused <- err
			}
			return produced, err
		}
	})
	handlers := map[string]*message.Handler{}
	for _, name := range names {
		w.feeds[name] = rig.NewFeed()
		handlers[name] = w.AddConsumerHandler(name, "orders", w.feeds[name], func(msg *message.Message) error {
			_, err := effect(msg)
			return err
		})
	}
	configure(w.Router, handlers)
	rig.Run(t, w.Router)
	return w
}

// handle gives a handler the same message each time, and reports whether it was acked.
func (w *wired) handle(t *testing.T, handler string) bool {
	t.Helper()
	msg := message.NewMessage("1", nil)
	w.feeds[handler].Send(t, msg)
	return rig.Answer(t, msg)
}

func addTo(i millrace.Inbox) func(*message.Router, map[string]*message.Handler) {
	return func(r *message.Router, _ map[string]*message.Handler) { i.AddTo(r) }
}

func TestOneLineWiresTheInbox(t *testing.T) {
	db, store := open(t)
	w := wire(t, addTo(millrace.Inbox{Store: store}), "billing", "shipping")
	for range 2 {
		require.True(t, w.handle(t, "billing"))
		require.True(t, w.handle(t, "shipping"))
	}
	require.Equal(t, 2, effects(t, db))
}

// Only AddTo of the router counts: that of another one on the same Store does not vouch for its guard.
func TestTheMiddlewareAloneIsRefusedWithoutAPlugin(t *testing.T) {
	db, store := open(t)
	wire(t, addTo(millrace.Inbox{Store: store}), "billing")
	bare := wire(t, func(r *message.Router, _ map[string]*message.Handler) {
		r.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	}, "shipping")
	require.False(t, bare.handle(t, "shipping"))
	err := <-bare.refused
	require.ErrorIs(t, err, inbox.ErrNoPlugin)
	require.ErrorContains(t, err, "middleware.Inbox.AddTo(router)")
	require.Zero(t, effects(t, db))
}

func TestTheMiddlewareAloneWorksBesideAnotherInboxsPlugin(t *testing.T) {
	db, store := open(t)
	only := func(name string) func(*message.Message) bool {
		return func(msg *message.Message) bool { return message.HandlerNameFromCtx(msg.Context()) != name }
	}
	shipping := millrace.Inbox{Store: store, Skip: only("shipping"), Key: inbox.ByPayload()}
	for _, add := range []func(*message.Router){
		func(r *message.Router) { r.AddMiddleware(shipping.Middleware) },
		shipping.AddTo, // whose plugin must not ask for the key of billing, which is known by now
	} {
		w := wire(t, func(r *message.Router, _ map[string]*message.Handler) {
			millrace.Inbox{Store: store, Skip: only("billing")}.AddTo(r)
			add(r)
		}, "billing", "shipping")
		require.True(t, w.handle(t, "billing"))
		require.True(t, w.handle(t, "shipping"))
		require.NoError(t, w.Close())
	}
	require.Equal(t, 2, effects(t, db))
}

func TestAHandlersOwnInboxNeedsThePluginOnly(t *testing.T) {
	db, store := open(t)
	i := millrace.Inbox{Store: store, Consumer: "shipping"}
	w := wire(t, func(r *message.Router, handlers map[string]*message.Handler) {
		r.AddPlugin(i.Plugin())
		handlers["shipping"].AddMiddleware(i.Middleware)
	}, "billing", "shipping")
	for range 2 {
		require.True(t, w.handle(t, "shipping"))
	}
	require.Equal(t, 1, effects(t, db))
}

// frames counts the goroutines that are in a method of package inbox.
func frames(method string) int {
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("millrace/inbox."+method+"("))
}

func TestTheStoresWorkIsDoneOnceHoweverManyAreAdded(t *testing.T) {
	const run, wait = "(*Store).Run", "(*background).takeTurn"
	rig.Eventually(t, "the routers of other tests end", func() bool { return frames(run)+frames(wait) == 0 })
	_, store := open(t)
	always := func(*message.Message) bool { return true }
	twice := func(r *message.Router, _ map[string]*message.Handler) {
		millrace.Inbox{Store: store}.AddTo(r)
		millrace.Inbox{Store: store, Skip: always}.AddTo(r)
		r.AddPlugin(store.Plugin())
	}
	first := wire(t, twice, "billing")
	rig.Eventually(t, "the first router works", func() bool { return frames(run) == 1 })
	second := wire(t, twice, "billing")
	rig.Eventually(t, "the second one waits", func() bool { return frames(run) == 1 && frames(wait) == 1 })
	require.NoError(t, first.Close())
	rig.Eventually(t, "the second one goes on", func() bool { return frames(run) == 1 && frames(wait) == 0 })
	require.NoError(t, second.Close())
	rig.Eventually(t, "the work ends", func() bool { return frames(run) == 0 })
}

// What is wrong is told by Router.Run, and no call of AddTo panics.
func TestAddToLeavesWhatIsWrongToTheStart(t *testing.T) {
	_, store := open(t)
	for name, c := range map[string]struct {
		inbox millrace.Inbox
		says  string
	}{
		"no store":       {millrace.Inbox{}, "a Store is required"},
		"a bad setting":  {millrace.Inbox{Store: store, Timeout: -1}, "Timeout -1ns is negative"},
		"a shared name":  {millrace.Inbox{Store: store, Consumer: "billing"}, `2 handlers of one router would share the consumer "billing"`},
		"a key was kept": {millrace.Inbox{Store: store, Key: inbox.ByPayload()}, "key changed"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a key was kept" {
				w := wire(t, addTo(millrace.Inbox{Store: store}), "billing")
				require.True(t, w.handle(t, "billing"))
				require.NoError(t, w.Close())
			}
			router := rig.NewRouter(t)
			for _, handler := range []string{"billing", "shipping"} {
				router.AddConsumerHandler(handler, "orders", rig.NewFeed(), func(*message.Message) error { return nil })
			}
			require.NotPanics(t, func() { c.inbox.AddTo(router) })
			ended := make(chan error, 1)
			go func() { ended <- router.Run(t.Context()) }()
			require.ErrorContains(t, rig.Within(t, ended, "the router starts"), c.says)
		})
	}
}

func TestAddToOfNoRouterIsLogged(t *testing.T) {
	db, _ := open(t)
	log := &rig.Events{}
	store, err := inbox.NewStore(db, inbox.Config{Logger: log})
	require.NoError(t, err)
	require.NotPanics(t, func() {
		millrace.Inbox{Store: store}.AddTo(nil)
		millrace.Inbox{}.AddTo(nil)
	})
	require.Len(t, log.Logs(), 1)
}

// A Store without a logger of its own has that of the first router, and until then the default.
func TestTheStoreLogsToTheFirstRouter(t *testing.T) {
	lines := rig.DefaultLog(t, slog.LevelInfo)
	_, store := open(t)
	early := store.Logger().With(watermill.LogFields{"consumer": "billing"})
	early.Info("before any router", nil)
	require.Contains(t, lines.String(), `msg="before any router" consumer=billing`)
	var logs [2]rig.Events
	for i := range logs {
		router, err := message.NewRouter(message.RouterConfig{}, &logs[i])
		require.NoError(t, err)
		millrace.Inbox{Store: store}.AddTo(router)
		router.AddConsumerHandler("billing", "orders", rig.NewFeed(), func(*message.Message) error { return nil })
		rig.Run(t, router)
	}
	early.Info("said later", nil)
	store.Logger().Info("said last", nil)
	first, second := strings.Join(logs[0].Logs(), "\n"), strings.Join(logs[1].Logs(), "\n")
	require.NotContains(t, first, "before any router")
	require.Contains(t, first, "said later")
	require.Contains(t, first, "said last")
	require.NotContains(t, second, "said l")
	require.NotContains(t, lines.String(), "said l")
}

func TestLeasesLogByDefault(t *testing.T) {
	lines := rig.DefaultLog(t, slog.LevelInfo)
	inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{}).Logger().Info("a lease", nil)
	require.Contains(t, lines.String(), `msg="a lease"`)
}

func TestALoggerOfTheStoresOwnIsKept(t *testing.T) {
	db, _ := open(t)
	own, routers := &rig.Events{}, &rig.Events{}
	store, err := inbox.NewStore(db, inbox.Config{Logger: own})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, routers)
	require.NoError(t, err)
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddConsumerHandler("billing", "orders", rig.NewFeed(), func(*message.Message) error { return nil })
	rig.Run(t, router)
	store.Logger().Info("to its own", nil)
	require.Contains(t, own.Logs(), "to its own")
	require.NotContains(t, routers.Logs(), "to its own")
}

// The Store may log while routers start.
func TestLoggingRacesWithNoRouter(t *testing.T) {
	_, store := open(t)
	ctx, stop := context.WithCancel(t.Context())
	var logging sync.WaitGroup
	logging.Go(func() {
		for ctx.Err() == nil {
			store.Logger().With(watermill.LogFields{"a": 1}).Debug("said", nil)
		}
	})
	for range 2 {
		wire(t, addTo(millrace.Inbox{Store: store}), "billing")
	}
	stop()
	logging.Wait()
}

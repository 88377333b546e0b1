package policy_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

func newStore(t testing.TB) *inbox.Store {
	t.Helper()
	store := newStoreWithoutTables(t)
	require.NoError(t, store.Migrate(t.Context()))
	return store
}

func newStoreWithoutTables(t testing.TB) *inbox.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	db, err := sqlx.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	store, err := inbox.NewStore(db, inbox.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
	return store
}

func newRouter(t testing.TB) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

func prepare(*message.Message) error { return nil }

func consumers(rules map[string]policy.Rules) policy.Policy { return policy.Policy{Consumers: rules} }

func TestWireReportsWhatTheWiringLacks(t *testing.T) {
	store := newStore(t)
	inboxOnly := map[string]policy.Rules{"billing": {}}
	for name, c := range map[string]struct {
		policy policy.Policy
		wiring policy.Wiring
		want   string
	}{
		"no store": {
			consumers(inboxOnly), policy.Wiring{},
			"consumers.billing: strategy inbox needs a store: set Wiring.Store, or name one of Wiring.Stores\n" +
				"defaults: strategy inbox needs a store: set Wiring.Store, or name one of Wiring.Stores",
		},
		"no store for leases": {
			policy.Policy{Defaults: policy.Rules{Strategy: policy.Dedup}}, policy.Wiring{},
			"defaults: strategy dedup needs a store: set Wiring.Store, or name one of Wiring.Stores",
		},
		"another store": {
			consumers(map[string]policy.Rules{"billing": {Store: "eu"}}),
			policy.Wiring{Store: store, Stores: map[string]*inbox.Store{"us": store, "asia": store}},
			`consumers.billing.store: "eu" is not in Wiring.Stores, which has asia, us`,
		},
		"no stores": {
			consumers(map[string]policy.Rules{"billing": {Store: "eu"}}), policy.Wiring{Store: store},
			`consumers.billing.store: "eu" must be in Wiring.Stores, which is empty`,
		},
		"a nil store": {
			policy.Policy{}, policy.Wiring{Store: store, Stores: map[string]*inbox.Store{"eu": nil}},
			`Wiring.Stores["eu"] is nil`,
		},
		"functions that are nil": {
			consumers(map[string]policy.Rules{"billing": {
				Strategy: policy.Gate, Key: policy.Key{From: "func:order"}, Version: policy.Version{From: "func:line"},
			}}),
			policy.Wiring{
				Store: store, Keys: map[string]inbox.Key{"order": {}, "uuid": inbox.ByUUID()},
				Versions: map[string]inbox.VersionFunc{"line": nil},
				Before:   map[string]func(*message.Message) error{"mails": nil},
				Outboxes: map[string]message.Publisher{"eu": nil, "us": (*outbox.Publisher)(nil), "asia": &rig.Publisher{}},
			},
			`Wiring.Before["mails"] is nil` + "\n" +
				`Wiring.Keys["order"] is the zero Key: write inbox.ByUUID() if the UUID is meant` + "\n" +
				`Wiring.Outboxes["eu"] is nil` + "\n" +
				`Wiring.Outboxes["us"] is nil` + "\n" +
				`Wiring.Versions["line"] is nil`,
		},
		"no outbox": {
			consumers(map[string]policy.Rules{"billing": {Strategy: policy.Intent}}), policy.Wiring{Store: store},
			"consumers.billing.strategy: intent needs an outbox: set Wiring.Outbox",
		},
		"no outbox of a store with a name": {
			consumers(map[string]policy.Rules{"billing": {Strategy: policy.Intent, Store: "eu"}}),
			policy.Wiring{Store: store, Stores: map[string]*inbox.Store{"eu": store}, Outbox: &rig.Publisher{}},
			`consumers.billing.strategy: intent needs an outbox: set Wiring.Outboxes["eu"]`,
		},
		"no such key": {
			consumers(map[string]policy.Rules{"billing": {Key: policy.Key{From: "uuid+func:order"}}}),
			policy.Wiring{Store: store, Keys: map[string]inbox.Key{"account": inbox.ByPayload(), "orders": inbox.ByPayload()}},
			`consumers.billing.key.from: "order" is not in Wiring.Keys, which has account, orders: did you mean orders?`,
		},
		"no such order key": {
			consumers(map[string]policy.Rules{"billing": {OrderKey: "func:order", Ack: policy.AckStored}}), policy.Wiring{Store: store},
			`consumers.billing.order_key: "order" must be in Wiring.Keys, which is empty`,
		},
		"no such version": {
			consumers(map[string]policy.Rules{"billing": {Strategy: policy.Latest, Version: policy.Version{From: "func:order"}}}),
			policy.Wiring{Store: store},
			`consumers.billing.version.from: "order" must be in Wiring.Versions, which is empty`,
		},
		"steps in a transaction": {
			consumers(map[string]policy.Rules{"billing": {SideEffects: policy.OnceSteps}}), policy.Wiring{Store: store},
			`consumers.billing.side_effects: strategy inbox has a transaction, which a step would hold: do the steps in Wiring.Before["billing"], ` +
				`or take strategy dedup`,
		},
		"steps before a gate": {
			consumers(map[string]policy.Rules{"billing": {Strategy: policy.Latest}, "mails": {Strategy: policy.Dedup}}),
			policy.Wiring{Store: store, Before: map[string]func(*message.Message) error{"billing": prepare, "mails": prepare}},
			`consumers.billing.strategy: latest decides in the transaction whether a message is handled, and Wiring.Before["billing"] would run for those ` +
				"that are not: take it out, and have another consumer do what the handler publishes through the outbox\n" +
				`consumers.mails.strategy: dedup has no transaction for Wiring.Before["mails"] to come before: take it out, and do the same in the handler`,
		},
		"steps before a handler in the shadow": {
			consumers(map[string]policy.Rules{"mails": {Strategy: policy.Inbox, Shadow: true}}),
			policy.Wiring{Store: store, Before: map[string]func(*message.Message) error{"mails": prepare}},
			`consumers.mails.shadow: a consumer in the shadow runs nothing before its handler, so Wiring.Before["mails"] would not be done: ` +
				"take one of the two out",
		},
		"steps before everything": {
			policy.Policy{}, policy.Wiring{Store: store, Inbox: millrace.Inbox{Options: inbox.Options{Before: prepare}}},
			"Wiring.Inbox.Before would run for every handler: list the handlers that need it in Wiring.Before",
		},
		"everything": {
			consumers(map[string]policy.Rules{"a": {Strategy: policy.Intent, Key: policy.Key{From: "func:x"}}, "b": {Store: "eu"}}),
			policy.Wiring{Store: store},
			`consumers.a.key.from: "x" must be in Wiring.Keys, which is empty` + "\n" +
				"consumers.a.strategy: intent needs an outbox: set Wiring.Outbox\n" +
				`consumers.b.store: "eu" must be in Wiring.Stores, which is empty`,
		},
		"what a policy has no word for": {
			policy.Policy{}, policy.Wiring{Store: store, Inbox: millrace.Inbox{Options: inbox.Options{TwinWait: -1}}},
			"defaults: middleware.Inbox: invalid settings: TwinWait -1ns is negative",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.policy.Wire(newRouter(t), c.wiring)
			require.EqualError(t, err, c.want)
		})
	}
}

// What a file says is reported with its line.
func TestWireNamesFileAndLine(t *testing.T) {
	p, err := policy.Read(strings.NewReader(`
defaults:
  store: eu
consumers:
  billing:
    key: {from: "func:order"}
  mails:
    strategy: durable
`), "policy.yaml")
	require.NoError(t, err)
	_, err = p.Wire(newRouter(t), policy.Wiring{})
	require.EqualError(t, err, `policy.yaml:3: defaults.store: "eu" must be in Wiring.Stores, which is empty`+"\n"+
		`policy.yaml:6: consumers.billing.key.from: "order" must be in Wiring.Keys, which is empty`)

	router := newRouter(t)
	router.AddConsumerHandler("mails", "orders", rig.NewFeed(), done)
	_, err = p.Wire(router, policy.Wiring{
		Stores: map[string]*inbox.Store{"eu": newStore(t)}, Keys: map[string]inbox.Key{"order": inbox.ByMetadata("order")},
	})
	require.NoError(t, err)
	require.EqualError(t, startError(t, router),
		"policy.yaml:5: consumers.billing: the router has no such handler: if it is added later, or to another router, "+
			"name it in Wiring.Absent; the router has mails\n"+
			`policy.yaml:7: consumers.mails: handler "mails" needs a queue (strategy: durable): `+
			`give the router the subscriber that wired.Subscriber("mails", subscriber) returns`)
}

func TestWireNeedsARouterThatDoesNotRunYet(t *testing.T) {
	_, err := policy.Policy{}.Wire(nil, policy.Wiring{Store: newStore(t)})
	require.EqualError(t, err, "policy: Wire needs a router")
	router := newRouter(t)
	run(t, router)
	_, err = policy.Policy{}.Wire(router, policy.Wiring{Store: newStore(t)})
	require.EqualError(t, err, "policy: the router runs already: wire it before Run")
}

func TestSubscriberNeedsRules(t *testing.T) {
	wired, err := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"audit": {}}}.Wire(newRouter(t), policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	_, err = wired.Subscriber("billing", rig.NewFeed())
	require.EqualError(t, err, `strict: handler "billing" is not named: name it in consumers, or take strict out`)
}

func TestSubscriberReportsWhatTheQueueCannotHave(t *testing.T) {
	store := newStore(t)
	w := policy.Wiring{Store: store}
	w.Durable.Concurrency = -1
	wired, err := consumers(map[string]policy.Rules{"billing": {Strategy: policy.Durable}}).Wire(newRouter(t), w)
	require.NoError(t, err)
	_, err = wired.Subscriber("billing", rig.NewFeed())
	require.EqualError(t, err, `consumers.billing: pubsub.Durable: invalid settings: Concurrency -1 is negative`)
}

// A subscriber that needs no queue is not touched.
func TestSubscriberWrapsOnlyWhatNeedsIt(t *testing.T) {
	feed := rig.NewFeed()
	wired, err := consumers(map[string]policy.Rules{"billing": {Strategy: policy.Durable}}).Wire(newRouter(t), policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	for handler, wraps := range map[string]bool{"billing": true, "audit": false} {
		sub, err := wired.Subscriber(handler, feed)
		require.NoError(t, err)
		require.Equal(t, wraps, sub != message.Subscriber(feed), handler)
	}
}

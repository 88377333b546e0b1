package policy_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// Two handlers that would share a memory are refused when the router starts, also where the
// policy alone does not show it: one is not named in it, or one store has two names.
func TestRunRefusesTwoHandlersOfOneConsumer(t *testing.T) {
	store := newStore(t)
	shared := func(handler, consumer, other string) string {
		return `consumers.` + handler + `.consumer: "` + consumer + `" is the consumer of handler "` + other + `" too, and the two would take ` +
			`each other's messages for duplicates: give each its own`
	}
	for name, c := range map[string]struct {
		rules map[string]policy.Rules
		want  string // empty: the router starts
	}{
		"one that is not named":    {map[string]policy.Rules{"mails": {Consumer: "billing"}}, shared("mails", "billing", "billing")},
		"one that comes later":     {map[string]policy.Rules{"billing": {Consumer: "mails"}}, shared("billing", "mails", "mails")},
		"one store with two names": {map[string]policy.Rules{"billing": {Consumer: "c"}, "mails": {Consumer: "c", Store: "eu"}}, shared("mails", "c", "billing")},
		"leases": {
			map[string]policy.Rules{"billing": {Strategy: policy.Dedup}, "mails": {Strategy: policy.Dedup, Consumer: "billing", Store: "eu"}},
			shared("mails", "billing", "billing"),
		},
		"leases and an inbox": {map[string]policy.Rules{"mails": {Strategy: policy.Dedup, Consumer: "billing"}}, ""},
		"no memory":           {map[string]policy.Rules{"billing": {Strategy: policy.None}, "mails": {Consumer: "billing"}}, ""},
		"two epochs":          {map[string]policy.Rules{"mails": {Consumer: "billing", Epoch: 1}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			router := newRouter(t)
			for _, handler := range []string{"billing", "mails"} {
				router.AddConsumerHandler(handler, "orders", rig.NewFeed(), done)
			}
			_, err := consumers(c.rules).Wire(router, policy.Wiring{Store: store, Stores: map[string]*inbox.Store{"eu": store}})
			require.NoError(t, err)
			if c.want == "" {
				run(t, router)
				return
			}
			require.EqualError(t, startError(t, router), c.want)
		})
	}
}

// What is to be done before the transactions of a handler that the router does not have
// would never be done.
func TestRunRefusesStepsOfNoHandler(t *testing.T) {
	router := newRouter(t)
	router.AddConsumerHandler("billing", "orders", rig.NewFeed(), done)
	before := map[string]func(*message.Message) error{"biling": prepare, "billing": prepare, "later": prepare}
	_, err := policy.Policy{}.Wire(router, policy.Wiring{Store: newStore(t), Before: before, Absent: []string{"later"}})
	require.NoError(t, err)
	require.EqualError(t, startError(t, router), `Wiring.Before["biling"]: the router has no such handler: if it is added later, or to another router, `+
		`name it in Wiring.Absent; the router has billing: did you mean billing?`)
}

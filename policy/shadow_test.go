package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// delivered gives each message twice to the handlers of a policy and returns how often each
// ran with a transaction, and without.
func delivered(t *testing.T, file string, w policy.Wiring, messages int, handlers ...string) (*policy.Wired, map[string][2]int) {
	t.Helper()
	p, err := policy.Read(strings.NewReader(file), "policy.yaml")
	require.NoError(t, err)
	router := newRouter(t)
	wired, err := p.Wire(router, w)
	require.NoError(t, err)
	runs, feeds := map[string][2]int{}, map[string]*rig.Feed{}
	for _, handler := range handlers {
		feeds[handler] = rig.NewFeed()
		router.AddConsumerHandler(handler, "orders", feeds[handler], func(msg *message.Message) error {
			n := runs[handler]
			if _, err := inbox.Tx(msg.Context()); err == nil {
				n[0]++
			} else {
				n[1]++
			}
			runs[handler] = n
			return nil
		})
	}
	run(t, router)
	for n := range messages {
		for _, handler := range handlers {
			for range 2 {
				msg := message.NewMessage(watermill.NewUUID(), []byte("x")) // sent again, under another UUID
				msg.Metadata = message.Metadata{
					"order_id": fmt.Sprint(n), inbox.AggregateField: "a", inbox.VersionField: fmt.Sprint(n + 1),
				}
				feeds[handler].Send(t, msg)
				require.True(t, rig.Answer(t, msg))
			}
		}
	}
	return wired, runs
}

// Where the rules of a consumer say shadow, each delivery has its effect, and what the rules
// would have seen is reported. The line goes, and they are enforced. Others are as they are.
func TestShadowThenEnforce(t *testing.T) {
	t.Parallel()
	const file = `
consumers:
  billing:
    shadow: true
    key: metadata:order_id
  accounts:
    shadow: true
    strategy: gate
    key: json:id
    version: metadata
  mailer:
    key: metadata:order_id
`
	wiring := policy.Wiring{Store: newStore(t), Shadow: shadow.Config{Keys: []inbox.Key{inbox.ByMetadata("order_id")}}}
	wired, runs := delivered(t, file, wiring, 5, "billing", "accounts", "mailer")
	assert.Equal(t, map[string][2]int{"billing": {0, 10}, "accounts": {0, 10}, "mailer": {5, 0}}, runs)

	r := wired.Shadow()
	require.Len(t, r.Consumers, 2, "mailer is not watched")
	accounts, billing := r.Consumers[0], r.Consumers[1]
	assert.Equal(t, []string{"accounts", "billing"}, []string{accounts.Name, billing.Name})
	assert.Equal(t, []string{"uuid", "cloudevent", "payload", `metadata:"order_id"`}, keys(billing))
	assert.Equal(t, []string{"uuid", "cloudevent", "payload", `metadata:"order_id"`, `json:"id"`}, keys(accounts), "its own, and the wiring's")
	assert.Equal(t, []int{0, 5}, []int{billing.Keys[0].Duplicates, billing.Keys[3].Duplicates})
	assert.Equal(t, 5, accounts.Versions[0].Repeated)
	assert.False(t, r.Began.IsZero())

	enforced := policy.Suggest(billing).String()
	assert.Contains(t, enforced, "from: metadata:order_id")
	wired, runs = delivered(t, enforced, policy.Wiring{Store: newStore(t)}, 5, "billing")
	assert.Equal(t, map[string][2]int{"billing": {5, 0}}, runs, "once each, in the inbox's transaction")
	assert.Empty(t, wired.Shadow().Consumers)
}

func keys(c shadow.Consumer) (names []string) {
	for _, k := range c.Keys {
		names = append(names, k.Key)
	}
	return names
}

// To look costs no database and no queue, whatever the rules will need.
func TestShadowNeedsNoStoreAndNoQueue(t *testing.T) {
	t.Parallel()
	const file = `
strict: true
defaults: {shadow: true, strategy: durable}
consumers:
  billing:
  accounts: {strategy: gate, version: "json:id,version"}
`
	wired, runs := delivered(t, file, policy.Wiring{}, 2, "billing", "accounts")
	assert.Equal(t, map[string][2]int{"billing": {0, 4}, "accounts": {0, 4}}, runs)
	accounts := wired.Shadow().Consumers[0]
	require.Len(t, accounts.Versions, 1)
	assert.Equal(t, "json:id,version", accounts.Versions[0].Source)
	assert.Equal(t, 4, accounts.Versions[0].Missing)
	feed := rig.NewFeed()
	sub, err := wired.Subscriber("billing", feed)
	require.NoError(t, err)
	assert.Equal(t, message.Subscriber(feed), sub)
}

func TestShadowReportsWhatTheWiringLacks(t *testing.T) {
	t.Parallel()
	rules := map[string]policy.Rules{
		"a": {Shadow: true, Key: policy.Key{From: "func:order"}},
		"b": {Shadow: true, Strategy: policy.Gate, Version: policy.Version{From: "func:step"}},
		"c": {Shadow: true},
	}
	p := policy.Policy{Strict: true, Consumers: rules}
	_, err := p.Wire(newRouter(t), policy.Wiring{Shadow: shadow.Config{MaxKeys: -1}})
	require.Error(t, err)
	for _, want := range []string{
		`consumers.a.key.from: "order"`, `consumers.b.version.from: "step"`, "consumers.c: shadow: invalid settings: MaxKeys -1",
	} {
		assert.ErrorContains(t, err, want)
	}
}

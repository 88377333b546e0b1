package policy_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
)

// TestBatchesOfAPolicy: a handler gets as many messages as its rules say, in the transaction of the inbox, in order, also from the table.
func TestBatchesOfAPolicy(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]string{
		"inbox":  "{batch: {max: 3, linger: 5m}}",
		"stored": "{ack: stored, batch: {max: 3, linger: 5m}}",
		"gate":   "{strategy: gate, batch: {max: 3, linger: 5m}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := policy.Read(strings.NewReader("consumers:\n  search: "+rules), "policy.yaml")
			require.NoError(t, err)
			router, feed := newRouter(t), rig.NewFeed()
			wired, err := p.Wire(router, policy.Wiring{Store: newStore(t)})
			require.NoError(t, err)
			sizes := make(chan int, 10)
			_, err = wired.AddBatchHandler("search", "documents", feed, func(ctx context.Context, msgs []*message.Message) error {
				_, err := inbox.Tx(ctx)
				sizes <- len(msgs)
				return err
			})
			require.NoError(t, err)
			run(t, router)
			for _, version := range []int64{2, 1, 3} {
				msg := message.NewMessage(strconv.FormatInt(version, 10), nil)
				outbox.Stamp(msg, "one", version)
				feed.Send(t, msg)
				defer func() { assert.True(t, rig.Answer(t, msg)) }()
			}
			assert.Equal(t, 3, rig.Within(t, sizes, "no batch"))
		})
	}
}

func TestBatchRefusesOtherRules(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	for rules, want := range map[string]string{
		"{strategy: none}":     "consumers.search.strategy: none has no transaction for a batch: take strategy inbox",
		"{strategy: dedup}":    "consumers.search.strategy: dedup has no transaction for a batch: take strategy inbox",
		"{shadow: true}":       "consumers.search.shadow: a batch needs the inbox's transaction, which shadow mode does not begin: leave shadow out",
		"{batch: {max: 4001}}": "consumers.search: middleware.Batch: invalid settings: Max 4001 is not between 0 and 4000",
		"{epoch: 1}": "consumers.search: middleware.Batch: invalid settings: Inbox.Before is for handlers of one message: " +
			"do its work in the function, or use Inbox without Batch",
	} {
		p, err := policy.Read(strings.NewReader("consumers:\n  search: "+rules), "")
		require.NoError(t, err, rules)
		wiring := policy.Wiring{Store: store}
		if strings.Contains(rules, "epoch") {
			wiring.Before = map[string]func(*message.Message) error{"search": prepare}
		}
		wired, err := p.Wire(newRouter(t), wiring)
		require.NoError(t, err, rules)
		_, err = wired.AddBatchHandler("search", "documents", rig.NewFeed(), nil)
		require.ErrorContains(t, err, want)
	}
	_, err := policy.Read(strings.NewReader("consumers:\n  search: {strategy: none, batch: {linger: 1s}}"), "")
	require.ErrorContains(t, err, "consumers.search.batch.linger: means nothing with strategy none")
	strict := policy.Policy{Strict: true, Consumers: map[string]policy.Rules{"audit": {}}}
	wired, err := strict.Wire(newRouter(t), policy.Wiring{Store: store})
	require.NoError(t, err)
	_, err = wired.AddBatchHandler("search", "documents", rig.NewFeed(), nil)
	require.ErrorContains(t, err, "strict")
}

// OnBegin is for all handlers of a router, so one with batches needs another router, and the error says so.
func TestBatchRefusesOnBegin(t *testing.T) {
	t.Parallel()
	begin := func(context.Context, *sqlx.Tx, *message.Message) error { return nil }
	wired, err := consumers(map[string]policy.Rules{"search": {}}).Wire(newRouter(t), policy.Wiring{
		Store: newStore(t), Inbox: millrace.Inbox{Options: inbox.Options{OnBegin: begin}},
	})
	require.NoError(t, err)
	_, err = wired.AddBatchHandler("search", "documents", rig.NewFeed(), nil)
	require.ErrorContains(t, err, "consumers.search: Wiring.Inbox.OnBegin is for handlers of one message: add this handler to a router of its own")
}

func TestRunRefusesBatchesThatNobodyMade(t *testing.T) {
	t.Parallel()
	router := newRouter(t)
	router.AddConsumerHandler("search", "documents", rig.NewFeed(), done)
	_, err := consumers(map[string]policy.Rules{"search": {Batch: policy.Batch{Max: 7}}}).Wire(router, policy.Wiring{Store: newStore(t)})
	require.NoError(t, err)
	require.EqualError(t, startError(t, router),
		`consumers.search.batch.max: handler "search" gets one message at a time: add it with wired.AddBatchHandler, or leave batch out`)
}

package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/policy"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestGateInTheOrderOfAKey: each order key and rule for what was parked is played with versions in each order.
func TestGateInTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := &bed{T: t, db: db, events: &rig.Events{}}
		var err error
		b.store = rig.NewStore(t, db.DB, inbox.Config{Observers: []inbox.Observer{b.events}})
		require.NoError(t, b.store.Migrate(t.Context()))
		require.NoError(t, createEffects(t.Context(), db.DB, db.Dialect))
		router := rig.NewRouter(t)
		p := policy.Policy{Consumers: map[string]policy.Rules{}}
		orders := [][]int{{1, 3, 2, 4}, {4, 3, 2, 1}}
		var names []string
		for _, key := range []string{"json:product", "func:customer"} {
			for _, parked := range []policy.OnParked{policy.HoldKey, policy.Continue} {
				for i := range orders {
					name := fmt.Sprintf("%s %s %d", key[:4], parked, i)
					names = append(names, name)
					p.Consumers[name] = policy.Rules{
						Strategy: policy.Gate, Ack: policy.AckStored, OrderKey: key, OnParked: parked,
						Version: policy.Version{From: "json:product,version"},
					}
				}
			}
		}
		wiring := policy.Wiring{Store: b.store, Keys: map[string]inbox.Key{
			"customer": inbox.ByFunc("customer", func(*message.Message) (string, error) { return "ada", nil }),
		}}
		wiring.Durable.Poll = 20 * time.Millisecond
		wired, err := p.Wire(router, wiring)
		require.NoError(t, err)
		feeds := map[string]*rig.Feed{}
		for _, name := range names {
			feeds[name] = rig.NewFeed()
			sub, err := wired.Subscriber(name, feeds[name])
			require.NoError(t, err)
			router.AddConsumerHandler(name, "changes", sub, func(msg *message.Message) error {
				return record(msg.Context(), name, msg.UUID)
			})
		}
		b.run(router)
		for i, name := range names {
			for _, version := range orders[i%len(orders)] {
				for _, product := range []string{"chair", "table"} {
					feeds[name].Send(t, change(fmt.Sprintf("%s %d", product, version), product, version, "event"))
				}
			}
		}
		for _, name := range names {
			for _, product := range []string{"chair", "table"} {
				var done []string
				assert.Eventually(t, func() bool {
					done = nil
					require.NoError(t, db.SelectContext(t.Context(), &done,
						db.Rebind(`SELECT what FROM effects WHERE handler = ? AND what LIKE ? ORDER BY id`), name, product+" %"))
					return len(done) == 4
				}, rig.Patience, tick, "%s %s", name, product)
				assert.Equal(t, []string{product + " 1", product + " 2", product + " 3", product + " 4"}, done, name)
			}
		}
		b.eventuallyNoneOpen()
	})
}

func (b *bed) eventuallyNoneOpen() {
	b.Helper()
	require.Eventually(b, func() bool {
		return b.db.Count(b, `SELECT COUNT(*) FROM millrace_messages`) == 0
	}, rig.Patience, tick)
}

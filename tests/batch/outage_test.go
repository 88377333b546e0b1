package batch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A server that answers nothing to the claims of a batch is no other process with one of its messages.
func TestOutageAtTheClaimsOfABatch(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "mysql"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, name)
			wire, _ := servers.Before(t, db.DSN)
			b := newBed(t, db)
			pool := faults.Open(t, db.Open(t, testdb.Via(wire.Addr())))
			h := b.batch(3, apply, on(b.newStore(pool.DB)), func(b *millrace.Batch) {
				b.Inbox.Timeout, b.Inbox.TwinWait = 6*time.Second, 100*time.Millisecond
			})
			before, during := newMessages(3), newMessages(3)
			b.untilAll(h, before)

			pool.Set(faults.Plan{Before: faults.At("INTO millrace_claims", func() error { wire.Freeze(); return nil })})
			for _, err := range b.errs(start(h, during)) {
				assert.ErrorIs(t, err, inbox.ErrUnavailable)
			}
			require.NotZero(t, b.events.Count("outage"))
			require.ErrorContains(t, b.events.All("outage")[0].Err, "nor the claim before it")

			pool.Set(faults.Plan{})
			wire.Thaw()
			rig.Eventually(t, "the database serves again", func() bool {
				for _, err := range b.errs(start(h, copies(during))) {
					if err != nil {
						return false
					}
				}
				return true
			})
			b.once(append(before, during...))
			assert.Zero(t, b.events.Count("failed"))
		})
	}
}

// While a batch that would find out whether the database is back waits for the slot of its consumer, others find out.
func TestAnOutageEndsThoughABatchWaitsForASlot(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "mysql"} { // SQLite has one slot, for all consumers
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, name))
			pool := faults.Open(t, b.db)
			store := b.newStore(pool.DB)
			entered, goOn := make(chan struct{}), make(chan struct{})
			h := b.batch(2, func(ctx context.Context, msgs []*message.Message) error {
				if len(msgs) == 1 {
					close(entered)
					<-goOn
				}
				return apply(ctx, msgs)
			}, on(store), func(b *millrace.Batch) {
				b.Inbox.MaxInFlight, b.Inbox.Timeout = 1, 2*rig.Patience
				b.Inbox.Redelivered = func(msg *message.Message) bool { return string(msg.Payload) == "alone" }
			})
			orders := millrace.Inbox{Store: store, Consumer: "orders"}.Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, nil
			})
			order := newMessages(1)[0]
			b.must(orders, newMessages(1))
			alone, two := newMessages(1), newMessages(2)
			alone[0].Payload = []byte("alone")
			running := start(h, alone)
			rig.Within(t, entered, "the handler of a single message, in the only slot")

			pool.Set(faults.Plan{Before: faults.Lose("INTO millrace_claims")})
			rig.MustFail(t, orders, order.Copy(), inbox.ErrUnavailable)
			asks := make(chan struct{})
			ask := sync.OnceFunc(func() { close(asks) })
			pool.Set(faults.Plan{Before: faults.At("millrace_consumers", func() error { ask(); return nil })})
			waiting := start(h, two)
			rig.Within(t, asks, "the batch registers its consumer, which comes before the wait for a slot")
			rig.Eventually(t, "the other consumer goes on", func() bool {
				_, err := orders(order.Copy())
				return err == nil
			})
			close(goOn)
			for _, err := range b.errs(append(running, waiting...)) {
				require.NoError(t, err)
			}
			assert.Equal(t, 3, b.effects())
		})
	}
}

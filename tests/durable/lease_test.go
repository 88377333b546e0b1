package durable_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// leaseBodies: what becomes of a message whose holder is gone or too slow.
var leaseBodies = []testdb.Body{
	{Name: "a server that hangs until Timeout ends a run", Why: "an outage is no attempt", Run: testdb.With(newBed, func(t *testing.T, b *bed) {
		if b.db.Dialect == "sqlite" {
			t.Log("there is no server")
			return
		}
		wire := servers.Proxy(t, regexp.MustCompile(`[\w.]+:\d+\b`).FindString(b.db.DSN[strings.LastIndex(b.db.DSN, "@"):]))
		store := rig.NewStore(b, b.db.Open(b, testdb.Via(wire.Addr())).DB, inbox.Config{
			WithoutPlugin: true, Observers: []inbox.Observer{inbox.On(func(context.Context, inbox.Event) { wire.Thaw() }, inbox.KindFailed)},
		})
		durable := quick(store)
		durable.Mode, durable.MaxAttempts, durable.Lease = pubsub.StoreFirst, 1, time.Minute
		var once sync.Once
		s := b.start(durable, func(msg *message.Message) ([]*message.Message, error) {
			once.Do(wire.Freeze)
			return nil, effect(msg)
		}, millrace.Inbox{Store: store, Timeout: time.Second}.Middleware)
		msg := newMessage()
		assert.True(t, s.deliver(msg))
		rig.Eventually(b, "it is handled, or parked", func() bool { return b.rows() == b.open(admin.Parked) })
		assert.Equal(t, []int{1, 0}, []int{b.effects(msg), b.rows()})
	})},
	{Name: "a process that gives no answer", Why: "its messages are tried one by one, each counted before, and only the one that ends it is parked",
		Run: testdb.With(newBed, func(t *testing.T, b *bed) {
			all := newMessages(5)
			queue := b.storeIn(inbox.QueueConfig{Lease: time.Second, MaxAttempts: 2}, all...)
			poison := all[3].UUID
			lapse := func() { b.db.Do(t, `UPDATE millrace_messages SET due_at = 1`) }
			taken := rig.Take(t, queue, 10)
			require.Len(t, taken, 5)
			lapse() // the process dies before it hands them out
			taken = rig.Take(t, queue, 10)
			require.Len(t, taken, 5, "which costs them nothing")
			for range 2 { // a service that closes before it delivers costs nothing either
				ours, err := queue.HandOut(t.Context(), taken...)
				require.NoError(t, err)
				require.Len(t, ours, 5)
				require.NoError(t, queue.PutBack(t.Context(), taken...))
				taken = rig.Take(t, queue, 10)
				require.Len(t, taken, 5)
			}
			ours, err := queue.HandOut(t.Context(), taken...)
			require.NoError(t, err)
			require.Len(t, ours, 5)
			lapse() // and now afterwards
			tries := 0
			for b.rows()-b.open(admin.Parked) > 0 {
				taken := rig.Take(t, queue, 10)
				require.LessOrEqual(t, len(taken), 1, "alone")
				for _, l := range taken {
					assert.True(t, l.Suspect())
					msg, err := l.Message(t.Context())
					require.NoError(t, err)
					if msg.UUID == poison {
						tries++
						lapse() // and another process dies
						continue
					}
					require.NoError(t, l.Finish(t.Context()))
				}
			}
			assert.Equal(t, 2, tries)
			parked := b.only(b.store, admin.Parked)
			assert.Equal(t, poison, parked.UUID)
			assert.Contains(t, parked.Reason, "it may end the process")
		})},
	{Name: "a lease that is lost", Why: "the slow loser's transaction is rolled back: effects once", Run: func(t *testing.T, db *testdb.DB) {
		if db.Dialect == "sqlite" {
			t.Log("a handler's transaction stops every writer here: nobody can take the lease")
			return
		}
		b := newBed(t, db)
		msg := newMessage()
		taken := rig.Take(t, b.storeIn(inbox.QueueConfig{Lease: time.Second}, msg), 1)
		slow, err := taken[0].Message(t.Context())
		require.NoError(t, err)
		h := millrace.Inbox{Store: b.store, Consumer: consumer}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			err := effect(msg)
			db.Do(t, `UPDATE millrace_messages SET lease_token = lease_token + 1`) //nolint:contextcheck // by another process
			return nil, err
		})
		_, err = h(slow)
		require.ErrorIs(t, err, inbox.ErrLost)
		assert.Zero(t, b.effects(msg))
		assert.Equal(t, 1, b.rows())
	}},
}
